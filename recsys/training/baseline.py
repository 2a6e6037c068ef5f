"""Count models as tracked runs, beside the trained ones."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from recsys.baselines.markov import MarkovChain
from recsys.baselines.pctm import AMAZON_BEAUTY, AMAZON_SPORTS, ML_1M, PCTM
from recsys.baselines.popularity import Popularity
from recsys.config import Experiment
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.metrics import summarise
from recsys.evaluation.rank_table import evaluate
from recsys.evaluation.scorer import Scorer
from recsys.training.tracking import track

_PCTM_SETTINGS = {"ml-1m": ML_1M, "amazon-beauty": AMAZON_BEAUTY, "amazon-sports": AMAZON_SPORTS}
"""The published settings; PCTM's defaults elsewhere."""

BASELINES: dict[str, Callable[[Histories, PreparedDataset], Scorer]] = {
    "popularity": lambda seen, data: Popularity.fit(seen, data.num_items),
    "markov_chain": lambda seen, data: MarkovChain.fit(seen, data.num_items),
    "pctm": lambda seen, data: PCTM.fit(
        seen, data.num_items, _PCTM_SETTINGS.get(data.manifest.origin)
    ),
}
"""What each baseline is fitted on: all but the test targets, and the dataset."""


def fit_baseline(name: str, experiment: Experiment, dataset: PreparedDataset) -> str:
    """Fit a baseline on all but the test targets, evaluate it on them, and log the run.

    Args:
        name: a key of `BASELINES`.
        experiment: its protocol, tracking and name count; the run is called NAME-BASELINE.
        dataset: the prepared dataset.

    Returns:
        The id of the MLflow run.
    """
    experiment = experiment.model_copy(update={"name": f"{experiment.name}-{name}"})
    with track(experiment, dataset, name) as tracker:
        started = time.perf_counter()
        scorer = BASELINES[name](dataset.histories("test"), dataset)
        seconds = time.perf_counter() - started
        table = evaluate(scorer, dataset.holdout("test"), "test", experiment.evaluation.seen)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "ranks_test.parquet")
            table.save(path)
            tracker.log_path(path)
        tracker.log_intervals("test", summarise(table.ranks, experiment.evaluation.cutoffs))
        tracker.log_figures({"fit_seconds": seconds})
    return tracker.run_id
