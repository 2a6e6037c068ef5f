"""Baselines as tracked runs, comparable with trained models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress

from recsys.baselines.ease import MAX_ITEMS
from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment, flatten
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.candidates import choose_candidates
from recsys.evaluation.held_out import evaluate_held_out, find_holdout
from recsys.evaluation.next_lists import evaluate_lists
from recsys.experiments.results import Results
from recsys.progress import stage
from recsys.tracking.artifacts import FIT_SECONDS, TUNE_SECONDS
from recsys.tracking.tracker import track


def baselines_of(experiment: Experiment, dataset: PreparedDataset) -> list[str]:
    """Return the names of the baselines that are informative under the protocol.

    If seen items are filtered, personal frequency and repeat last reduce to popularity; EASE
    refuses large catalogues.
    """
    excluded = (
        {"personal_frequency", "repeat_last"} if experiment.evaluation.seen == "filter" else set()
    )
    if dataset.num_items > MAX_ITEMS:
        excluded.add("ease")
    return [name for name in BASELINES if name not in excluded]


def baseline_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that decide the result of a baseline, by dotted name."""
    decisive = ("seed", "data.", "evaluation.", "training.refit")
    return {key: value for key, value in flatten(experiment).items() if key.startswith(decisive)}


def fit_baselines(
    names: Sequence[str],
    experiment: Experiment,
    dataset: PreparedDataset,
    progress: Progress | None = None,
) -> list[str]:
    """Tune, fit and log baselines one after the other; see `fit_baseline`.

    Args:
        names: keys of `BASELINES`.
        experiment: protocol, tracking and name.
        dataset: the prepared dataset.
        progress: the view to show them in. If None, a new one.

    Returns:
        The ids of the MLflow runs, in the order of the names.
    """
    runs = []
    with stage("baselines", len(names), progress, even=False) as line:
        for number, name in enumerate(names, 1):
            line.say(f"{number} of {len(names)}: {name}")
            runs.append(fit_baseline(name, experiment, dataset))
            line.advance()
    return runs


def fit_baseline(name: str, experiment: Experiment, dataset: PreparedDataset) -> str:
    """Tune and fit a baseline, evaluate it on the test targets, and log the run.

    Its settings are chosen on validation (`Baseline.choose`) and logged as ``baseline.…``. It is
    then fitted on the same data as the final model of the experiment: all but the test targets with
    ``training.refit``, else all but the validation and test targets.

    Args:
        name: a key of `BASELINES`.
        experiment: protocol, tracking and name; the run is called NAME-BASELINE.
        dataset: the prepared dataset.

    Returns:
        The id of the MLflow run.

    Raises:
        InputError: the experiment has other data settings than the dataset, there is nothing to
            evaluate on, or the candidates or the store cannot be used.
    """
    experiment = experiment.with_data(dataset.config)
    experiment = experiment.model_copy(update={"name": f"{experiment.name}-{name}"})
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
