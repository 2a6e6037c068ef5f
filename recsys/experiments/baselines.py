"""Baselines as tracked runs, comparable with models; the simplest of them, to judge a run by."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import Progress

from recsys.baselines.neighbours import MAX_ITEMS
from recsys.baselines.saved import FittedBaseline
from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment, flatten
from recsys.data.prepared import Part, PreparedDataset, TrainedOn
from recsys.data.splits import Holdout
from recsys.evaluation.candidates import choose_candidates
from recsys.evaluation.held_out import evaluate_held_out, evaluate_lists, find_holdout
from recsys.evaluation.tables import evaluate
from recsys.experiments.results import Results, Run, headline_metrics
from recsys.folders.atomic import new_folder
from recsys.progress import stage
from recsys.serving.bundle import ModelBundle
from recsys.serving.calibration import temperature_of
from recsys.tracking import artifacts
from recsys.tracking.artifacts import FIT_SECONDS, TUNE_SECONDS
from recsys.tracking.tracker import git_commit, track

SIMPLEST = ("markov", "popularity")
"""Baselines without settings, which are fitted in a moment."""
_MOST_SCORES, _FEWEST = 200_000_000, 1_000
"""Histories times items that are ranked in some seconds; and the histories of a sample at least,
for a recall within some hundredths."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The settings of a baseline that validation chose."""

    settings: Any
    """None if it has none."""
    seconds: float
    """How long the choice took."""


def baselines_of(experiment: Experiment, dataset: PreparedDataset) -> list[str]:
    """Return the names of the baselines that are informative under the protocol.

    If seen items are filtered, nothing is repeated; EASE refuses large catalogues.
    """
    repeating = {"personal_frequency", "repeat_last", "transitions_and_repeats"}
    excluded = repeating if experiment.evaluation.seen == "filter" else set()
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
    parent: str | None = None,
) -> list[str]:
    """Fit and log baselines one after the other as `fit_baseline`; return the ids of their runs."""
    runs = []
    with stage("baselines", len(names), progress, even=False) as line:
        for number, name in enumerate(names, 1):
            line.say(f"{number} of {len(names)}: {name}")
            runs.append(fit_baseline(name, experiment, dataset, parent=parent))
            line.advance()
    return runs


def fit_baseline(
    name: str,
    experiment: Experiment,
    dataset: PreparedDataset,
    *,
    tuned: Tuned | None = None,
    test: Holdout | None = None,
    parent: str | None = None,
) -> str:
    """Fit a baseline as `fit_baseline_bundle` without a bundle, called NAME-BASELINE.

    Returns:
        The id of the MLflow run.
    """
    changes = {"name": f"{experiment.name}-{name}", "baseline": name}
    baseline = experiment.model_copy(update=changes)
    return fit_baseline_bundle(baseline, dataset, tuned=tuned, test=test, parent=parent).run_id


def fit_baseline_bundle(
    experiment: Experiment,
    dataset: PreparedDataset,
    out: Path | None = None,
    *,
    tuned: Tuned | None = None,
    test: Holdout | None = None,
    answer: str | None = None,
    parent: str | None = None,
) -> Run:
    """Tune and fit the baseline of an experiment, evaluate it on the test targets, log the run.

    Its settings are chosen on validation (`Baseline.choose`) and logged as ``baseline.…``. It is
    then fitted on the same data as the final model of the experiment: all but the test targets with
    ``training.refit``, else all but the validation and test targets.

    Args:
        experiment: with a baseline.
        dataset: the prepared dataset.
        out: the folder of the bundle and the tables, which replaces that of an earlier run and is
            best checked before by `check_out`. If None, there is no bundle.
        tuned: its settings, where validation has chosen them already.
        test: the test targets to evaluate on; all of them if None.
        answer: the answer of an automatic run in words, which is logged as the tag of that name.
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
            chosen = baseline.choose(dataset, evaluation.seen)
            tuned = Tuned(chosen, time.perf_counter() - started)
        chosen, started = tuned.settings, time.perf_counter()
        if chosen is not None:
            tracker.log_settings(
                {f"baseline.{key}": value for key, value in asdict(chosen).items()}
            )
        scorer = baseline.fit(dataset, "test" if refit else "valid", chosen)
        fitting = time.perf_counter() - started
        seconds = {TUNE_SECONDS: tuned.seconds, FIT_SECONDS: fitting}
        tested = evaluate_held_out(scorer, dataset, holdout, "test", evaluation, candidates)
        lists = evaluate_lists({"lists": scorer}, dataset, "test", evaluation.seen)
        results = Results(evaluation.cutoffs, tested, lists)
        if out is None:
            results.log_alone(tracker, seconds)
        else:
            with new_folder(out) as folder:
                before = baseline.fit(dataset, "valid", chosen) if refit else scorer
                valid = dataset.holdout("valid", evaluation.request_time)
                ModelBundle.write(
                    *(folder / artifacts.BUNDLE, FittedBaseline(name, scorer), experiment, dataset),
                    *(trained_on, git_commit()),
                    temperature=temperature_of(before, valid, experiment.seed),
                    name=answer,
                )
                results.save(folder)
            results.log(tracker, out, seconds)
    return Run(
        run_id=tracker.run_id,
        tracking=experiment.tracking,
        bundle=(out or Path()) / artifacts.BUNDLE,
        best_epoch=0,
        valid={},
        test=results.test_metrics,
        seconds=tuned.seconds + fitting,
        headline=results.headline,
    )


class SimplestBaselines(NamedTuple):
    """The metrics of the simplest baselines, and what they were measured on."""

    metrics: dict[str, Mapping[str, float]]
    """The headline metrics without coverage, by the name of the baseline."""
    sampled: int | None
    """The number of histories whose targets were ranked, chosen at random; None if it was all."""


def simplest_baselines(
    experiment: Experiment, dataset: PreparedDataset, names: Sequence[str] = SIMPLEST
) -> SimplestBaselines:
    """Evaluate baselines without settings on the test targets of an experiment, without logging.

    They are fitted on the same parts as the experiment's model and ranked under its protocol. Where
    there are so many users and items that this takes more than a moment, on those of a sample.
    """
    experiment = experiment.with_data(dataset.config)
    evaluation = experiment.evaluation
    everything = find_holdout(dataset, "test", evaluation.request_time)
    most = max(_MOST_SCORES // dataset.num_items, _FEWEST)
    holdout = everything.sample(most, experiment.seed)
    candidates = choose_candidates(evaluation, dataset, "test", holdout)
    before: Part = "test" if experiment.training.refit else "valid"
    found: dict[str, Mapping[str, float]] = {}
    with stage("simplest baselines", len(names)) as line:
        for name in names:
            scorer = BASELINES[name].fit(dataset, before, None)
            ranks = evaluate(scorer, holdout, "test", evaluation.seen, candidates=candidates)
            found[name] = headline_metrics(ranks, evaluation.cutoffs)
            line.advance()
    return SimplestBaselines(found, None if holdout is everything else len(holdout.histories))
