"""Count models as tracked runs, beside the trained ones."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from recsys.baselines.markov import MarkovChain
from recsys.baselines.pctm import AMAZON_BEAUTY, AMAZON_SPORTS, ML_1M, PCTM
from recsys.baselines.popularity import Popularity
from recsys.config import Experiment, flatten
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.metrics import summarise
from recsys.evaluation.rank_table import evaluate
from recsys.evaluation.scorer import Scorer
from recsys.training.tracking import track

_PCTM_SETTINGS = {"ml-1m": ML_1M, "amazon-beauty": AMAZON_BEAUTY, "amazon-sports": AMAZON_SPORTS}
"""The published settings; PCTM's defaults elsewhere."""

BASELINES: dict[str, Callable[[Histories, PreparedDataset], Scorer]] = {
    "popularity": lambda log, data: Popularity.fit(log, data.num_items),
    "markov": lambda log, data: MarkovChain.fit(log, data.num_items),
    "pctm": lambda log, data: PCTM.fit(
        log, data.num_items, _PCTM_SETTINGS.get(data.manifest.origin)
    ),
}
"""How each baseline is fitted to the histories of a dataset."""

_SETTINGS = ("seed", "data.", "evaluation.", "training.refit")
"""What of an experiment decides the result of a baseline."""


def fit_baseline(name: str, experiment: Experiment, dataset: PreparedDataset) -> str:
    """Fit a baseline, evaluate it on the test targets, and log the run.

    It is fitted on what the model of the experiment is trained on in the end: all but the test
    targets with ``training.refit``, else all but validation and test targets.

    Args:
        name: a key of `BASELINES`.
        experiment: its protocol, tracking and name count; the run is called NAME-BASELINE.
        dataset: the prepared dataset.

    Returns:
        The id of the MLflow run.
    """
    experiment = experiment.model_copy(
        update={"name": f"{experiment.name}-{name}", "data": dataset.config}
    )
    refit = experiment.training.refit
    settings = {
        key: value for key, value in flatten(experiment).items() if key.startswith(_SETTINGS)
    }
    with track(experiment, dataset, name, settings) as tracker:
        tracker.tag("trained_until", "valid" if refit else "train")
        started = time.perf_counter()
        scorer = BASELINES[name](dataset.histories("test" if refit else "valid"), dataset)
        seconds = time.perf_counter() - started
        table = evaluate(scorer, dataset.holdout("test"), "test", experiment.evaluation.seen)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "ranks_test.parquet")
            table.save(path)
            tracker.log_path(path)
        tracker.log_intervals("test", summarise(table.ranks, experiment.evaluation.cutoffs))
        tracker.log_figures({"fit_seconds": seconds})
    return tracker.run_id
