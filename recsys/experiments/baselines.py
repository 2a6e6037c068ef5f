"""Baselines as tracked runs, comparable with models."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recsys.baselines.neighbours import MAX_ITEMS
from recsys.baselines.tuned import BASELINES
from recsys.config.experiment import Experiment
from recsys.config.files import flatten
from recsys.data.prepared import PreparedDataset, TrainedOn
from recsys.data.splits import Holdout
from recsys.evaluation.held_out import (
    evaluate_held_out,
    evaluate_lists,
    find_holdout,
    temperature_of,
)
from recsys.evaluation.tables import choose_candidates
from recsys.experiments.results import Results, Run
from recsys.folders import new_folder
from recsys.progress import stage
from recsys.serving.bundle import ModelBundle
from recsys.tracking import artifacts
from recsys.tracking.tracker import git_commit, track


def baselines_of(experiment: Experiment, dataset: PreparedDataset) -> list[str]:
    """Return the names of the baselines that are informative under the protocol."""
    repeating = {"personal_frequency", "repeat_last", "transitions_and_repeats"}
    excluded = repeating if experiment.evaluation.seen == "filter" else set()
    if dataset.num_items > MAX_ITEMS:
        excluded.add("ease")
    return [name for name in BASELINES if name not in excluded]


def baseline_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that decide the result of a baseline, by dotted name."""
    decisive = ("seed", "data.", "evaluation.", "training.refit")
    return {key: value for key, value in flatten(experiment).items() if key.startswith(decisive)}


def beside(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment of a baseline under the protocol of another, called NAME-BASELINE."""
    return experiment.model_copy(update={"name": f"{experiment.name}-{name}", "baseline": name})


def fit_baselines(
    names: Sequence[str],
    experiment: Experiment,
    dataset: PreparedDataset,
    parent: str | None = None,
) -> list[str]:
    """Fit and log baselines beside an experiment, without bundles; return the ids of their runs."""
    runs = []
    with stage("baselines") as line:
        for number, name in enumerate(names, 1):
            line.say(f"{number} of {len(names)}: {name}")
            runs.append(fit_baseline(beside(experiment, name), dataset, parent=parent).run_id)
    return runs


def fit_baseline(
    experiment: Experiment,
    dataset: PreparedDataset,
    out: Path | None = None,
    *,
    tuned: tuple[Any, float] | None = None,
    test: Holdout | None = None,
    answer: str | None = None,
    parent: str | None = None,
) -> Run:
    """Tune and fit the baseline of an experiment, evaluate it on the test targets, log the run.

    Its settings are chosen on validation and logged as ``baseline.…``. It is fitted on the data of
    a final model: all but the test targets with ``training.refit``, else without validation too.

    Args:
        experiment: with a baseline.
        dataset: the prepared dataset.
        out: the folder of the bundle and the tables, which is replaced; no bundle if None.
        tuned: its settings where validation has chosen them, and the seconds that this took.
        test: the test targets to evaluate on; all of them if None.
        answer: what the MLflow tag ``answer`` calls it, if anything.
        parent: see `track`.

    Raises:
        InputError: the experiment has other data settings than the dataset, there is nothing to
            evaluate on, or the candidates or the store cannot be used.
    """
    if (name := experiment.baseline) is None:
        raise ValueError("the experiment has no baseline")
    experiment = experiment.with_data(dataset.config)
    evaluation, refit = experiment.evaluation, experiment.training.refit
    trained_on: TrainedOn = ("train", "valid") if refit else ("train",)
    everything = find_holdout(dataset, "test", evaluation.request_time)
    holdout = everything if test is None else test
    settings = baseline_settings(experiment)
    if len(holdout.histories) < len(everything.histories):  # another result than that on all
        settings["evaluation.test_histories"] = len(holdout.histories)
    candidates = choose_candidates(evaluation, dataset, "test", holdout)
    with track(experiment, dataset, name, settings, candidates, parent=parent) as tracker:
        tracker.tag("trained_on", ", ".join(trained_on))
        if answer is not None:
            tracker.tag(artifacts.ANSWER, answer)
        baseline, started = BASELINES[name], time.perf_counter()
        if tuned is None:
            tuned = baseline.choose(dataset, evaluation.seen), time.perf_counter() - started
        (chosen, tuning), started = tuned, time.perf_counter()
        if chosen is not None:
            known = {f"baseline.{key}": value for key, value in asdict(chosen).items()}
            tracker.log_settings(known)
        scorer = baseline.fit(dataset, "test" if refit else "valid", chosen)
        fitting = time.perf_counter() - started
        seconds = {"tune_seconds": tuning, artifacts.FIT_SECONDS: fitting}
        tables, catalogue = evaluate_held_out(
            lambda some: scorer.score(some.histories), dataset, holdout, evaluation, candidates
        )
        tables |= evaluate_lists({"lists_test": scorer}, dataset, evaluation.seen, holdout)
        results = Results(evaluation.cutoffs, tables, catalogue)
        if out is None:
            results.log_alone(tracker, seconds)
        else:
            with new_folder(out) as folder:
                before = baseline.fit(dataset, "valid", chosen) if refit else scorer
                valid = dataset.holdout("valid", evaluation.request_time)
                ModelBundle.write(
                    *(folder / artifacts.BUNDLE, scorer, experiment, dataset),
                    *(trained_on, git_commit()),
                    temperature=temperature_of(before, valid, experiment.seed),
                )
                results.save(folder)
            results.log(tracker, out, seconds)
    return Run(
        *(tracker.run_id, experiment.tracking, (out or Path()) / artifacts.BUNDLE, 0),
        *({}, results.of_part("test"), tuning + fitting, results.headline),
    )
