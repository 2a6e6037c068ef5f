"""The names of a run's artifacts, tags and logged costs."""

from __future__ import annotations

from recsys.data.prepared import Part

BUNDLE = "bundle"
SETTINGS, REPORT = "experiment.yaml", "report.html"
COMPARISON = "comparison"

ANSWER = "answer"
FIT_SECONDS = "fit_seconds"
TUNE_SECONDS = "tune_seconds"
BEST_EPOCH = "best_epoch"
PARAMETERS = "parameters"
PEAK_MEMORY = "peak_memory_mib"
PRECISION = "precision"
"""The parameter for the precision that ``training.precision: auto`` became."""
COUNT_WEIGHT = "count_ensemble_weight"
REPEAT_WEIGHT = "count_ensemble_repeat_weight"
RECENT_WEIGHT = "count_ensemble_recent_weight"

COSTS = {FIT_SECONDS: "fit s", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}
"""The costs that a comparison shows, with the heads of their columns."""


def rank_file(part: Part) -> str:
    """Return the name of the rank table of a part of the split."""
    return f"ranks_{part}.parquet"


def model_alone_file(part: Part) -> str:
    """Return the name of the rank table of the model without its count ensemble."""
    return f"ranks_{part}_model_alone.parquet"


def top_k_file(part: Part) -> str:
    """Return the name of the table of best items."""
    return f"topk_{part}.parquet"


def next_list_file(part: Part, lists: str = "lists") -> str:
    """Return the name of a table of next purchases; ``lists`` as in `Results.lists`."""
    return f"{lists}_{part}.parquet"


RUN_FILES = frozenset(
    {
        *(BUNDLE, SETTINGS, REPORT, rank_file("valid"), rank_file("test"), top_k_file("test")),
        *(next_list_file("test"), next_list_file("test", "lists_best")),
        *(model_alone_file("valid"), model_alone_file("test")),
    }
)
"""Everything that the folder of a run may contain."""
