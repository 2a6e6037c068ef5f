"""Baselines as tracked runs, beside the trained models."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recsys.baselines.ease import MAX_ITEMS
from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment, flatten
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.candidates import choose_candidates
from recsys.evaluation.held_out import evaluate_held_out, find_holdout
from recsys.evaluation.next_lists import evaluate_lists
from recsys.experiments.results import Results
from recsys.tracking.artifacts import FIT_SECONDS, TUNE_SECONDS
from recsys.tracking.tracker import track


def baselines_of(experiment: Experiment, dataset: PreparedDataset) -> list[str]:
    """The names of the baselines that say something about the dataset under the protocol.

    Where seen items are left out, nothing remains of personal frequency and of repeating the last
    but popularity; EASE does not take catalogues of any size.
    """
    silent = (
        {"personal_frequency", "repeat_last"} if experiment.evaluation.seen == "filter" else set()
    )
    if dataset.num_items > MAX_ITEMS:
        silent.add("ease")
    return [name for name in BASELINES if name not in silent]


def baseline_settings(experiment: Experiment) -> dict[str, Any]:
    """What of an experiment decides the result of a baseline, by dotted names."""
    decisive = ("seed", "data.", "evaluation.", "training.refit")
    return {key: value for key, value in flatten(experiment).items() if key.startswith(decisive)}


def fit_baseline(name: str, experiment: Experiment, dataset: PreparedDataset) -> str:
    """Tune and fit a baseline, evaluate it on the test targets, and log the run.

    Its settings are chosen on validation (`Baseline.choose`) and logged as ``baseline.…``. Then it
    is fitted on what the model of the experiment is trained on in the end: all but the test targets
    with ``training.refit``, else all but validation and test targets.

    Args:
        name: a key of `BASELINES`.
        experiment: its protocol, tracking and name count; the run is called NAME-BASELINE.
        dataset: the prepared dataset.

    Returns:
        The id of the MLflow run.

    Raises:
        InputError: the dataset has nothing to evaluate on, or the candidates or the store will not
            do.
    """
    experiment = experiment.model_copy(
        update={"name": f"{experiment.name}-{name}", "data": dataset.config}
    )
    evaluation, refit = experiment.evaluation, experiment.training.refit
    holdout = find_holdout(dataset, "test", evaluation.request_time)
    settings = baseline_settings(experiment)
    candidates = choose_candidates(evaluation, dataset, "test", holdout)
    with track(experiment, dataset, name, settings, candidates) as tracker:
        tracker.tag("trained_on", "train, valid" if refit else "train")
        baseline, started = BASELINES[name], time.perf_counter()
        chosen = baseline.choose(dataset, evaluation.seen)
        if chosen is not None:
            tracker.log_settings(
                {f"baseline.{key}": value for key, value in asdict(chosen).items()}
            )
        tuned = time.perf_counter()
        scorer = baseline.fit(dataset, "test" if refit else "valid", chosen)
        seconds = {TUNE_SECONDS: tuned - started, FIT_SECONDS: time.perf_counter() - tuned}
        test = evaluate_held_out(scorer, dataset, holdout, "test", evaluation, candidates)
        lists = evaluate_lists(scorer, dataset, "test", evaluation.seen)
        results = Results(evaluation.cutoffs, test, {} if lists is None else {"lists": lists})
        with tempfile.TemporaryDirectory() as folder:
            results.save(Path(folder))
            results.log(tracker, Path(folder), seconds)
    return tracker.run_id
