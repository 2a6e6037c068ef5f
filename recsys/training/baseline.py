"""Baselines as tracked runs, beside the trained models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from recsys.baselines.frequency import PersonalFrequency
from recsys.baselines.markov import MarkovChain
from recsys.baselines.matrix_factorisation import MatrixFactorisation
from recsys.baselines.pctm import AMAZON_BEAUTY, AMAZON_SPORTS, ML_1M, PCTM
from recsys.baselines.popularity import Popularity
from recsys.config import Experiment, flatten
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.candidates import choose_candidates
from recsys.evaluation.held_out import evaluate_held_out
from recsys.evaluation.lists import evaluate_lists
from recsys.evaluation.metrics import metric_names
from recsys.evaluation.scorer import Scorer
from recsys.training.tracking import track

_PCTM_SETTINGS = {"ml-1m": ML_1M, "amazon-beauty": AMAZON_BEAUTY, "amazon-sports": AMAZON_SPORTS}
"""The published settings; PCTM's defaults elsewhere."""

BASELINES: dict[str, Callable[[Histories, PreparedDataset], Scorer]] = {
    "popularity": lambda log, data: Popularity.fit(log, data.num_items),
    "personal_frequency": lambda log, data: PersonalFrequency.fit(log, data.num_items),
    "markov": lambda log, data: MarkovChain.fit(log, data.num_items),
    "pctm": lambda log, data: PCTM.fit(
        log, data.num_items, _PCTM_SETTINGS.get(data.manifest.origin)
    ),
    "matrix_factorisation": lambda log, data: MatrixFactorisation.fit(log, data.num_items),
}
"""How each baseline is fitted to the histories of a dataset."""


def baselines_of(experiment: Experiment) -> list[str]:
    """The names of the baselines that say something under the experiment's protocol.

    Where seen items are left out, nothing remains of personal frequency but popularity.
    """
    filters = experiment.evaluation.seen == "filter"
    return [name for name in BASELINES if not (filters and name == "personal_frequency")]


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
    refit, seen = experiment.training.refit, experiment.evaluation.seen
    settings = {
        key: value for key, value in flatten(experiment).items() if key.startswith(_SETTINGS)
    }
    candidates = choose_candidates(experiment.evaluation, dataset, "test")
    with track(experiment, dataset, name, settings, candidates) as tracker:
        tracker.tag("trained_until", "valid" if refit else "train")
        started = time.perf_counter()
        scorer = BASELINES[name](dataset.histories("test" if refit else "valid"), dataset)
        seconds = time.perf_counter() - started
        test = evaluate_held_out(scorer, dataset, "test", experiment.evaluation, candidates)
        lists = evaluate_lists(scorer, dataset, "test", seen)
        with tempfile.TemporaryDirectory() as folder:
            test.ranks.save(Path(folder, "ranks_test.parquet"))
            test.best.save(Path(folder, "topk_test.parquet"))
            if lists is not None:
                lists.save(Path(folder, "lists_test.parquet"))
            for path in sorted(Path(folder).iterdir()):
                tracker.log_path(path)
        figures = test.ranks.summary(metric_names(experiment.evaluation.cutoffs))
        tracker.log_intervals("test", figures | (lists.summary() if lists else {}))
        tracker.log_figures({f"test/{name}": value for name, value in test.figures.items()})
        tracker.log_figures({"fit_seconds": seconds})
    return tracker.run_id
