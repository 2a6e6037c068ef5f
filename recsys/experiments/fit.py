"""Fit an experiment: train, evaluate, and write the bundle, the metrics and the MLflow run."""

import os
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from recsys.baselines.count_ensemble import CountEnsemble, choose_count_ensemble
from recsys.baselines.transitions import counted
from recsys.config.experiment import Experiment
from recsys.config.files import flatten
from recsys.config.model import SequenceToSequenceConfig
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.held_out import (
    HeldOutParts,
    ListMaker,
    evaluate_held_out,
    evaluate_lists,
    next_list_length,
    temperature_of,
    with_segments,
)
from recsys.evaluation.tables import Candidates, RankTable, choose_candidates, evaluate, rank_table
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.results import Results, Run, check_out
from recsys.experiments.trainings import checkpoint_files, plan_start, train_all
from recsys.folders import new_folder, sole_use
from recsys.inference.model_scorer import ModelScorer, generate_lists
from recsys.inference.scorer import ReportingScorer, Scorer
from recsys.machine import peak_memory_mib, reset_peak_memory
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.progress import stage
from recsys.serving.bundle import ModelBundle
from recsys.tracking import artifacts
from recsys.tracking.tracker import RecordError, Tracker, git_commit, track
from recsys.training.checkpoints import TrainingState
from recsys.training.device import process, take_gpu
from recsys.training.loop import Fitted


def fit(
    experiment: Experiment,
    dataset: PreparedDataset,
    out: str | os.PathLike[str] | None = None,
    *,
    fresh: bool = False,
) -> Run:
    """Train, choose the best epoch on validation, evaluate once on test, write and log the results.

    An experiment with a ``baseline`` trains nothing: see `fit_baseline`. Ctrl-C ends the training
    early, or skips the refit, and the best epoch so far is used; the run is then tagged
    ``interrupted``. A run that ended in another way, or before the last member of a mean was in
    training, resumes from its checkpoint, ``OUT.checkpoint`` (of a member ``OUT.checkpoint.N``),
    with the same result as an uninterrupted one. Of processes started by torchrun the first one
    evaluates, writes and returns; the others end with the training.

    Args:
        experiment: all settings; see `Experiment.with_data` for those of the data.
        dataset: the prepared dataset.
        out: folder for the bundle and the tables (``runs/NAME`` if None), which is replaced.
        fresh: ignore and delete any checkpoint.

    Raises:
        InputError: settings and dataset do not go together, there is nothing to train on or to
            evaluate, the checkpoint belongs to other settings or data, or a folder or the store
            cannot be used.
        RecordError: the store failed at the end; another call records the results.
        Terminated: SIGTERM; run it again to resume.
        SystemExit: the training has ended, and this is not the first process.
    """
    out = Path(out) if out is not None else Path("runs") / experiment.name
    take_gpu()
    with sole_use(out, "trains it") if process() == 0 else nullcontext():
        if experiment.baseline is not None:
            if process() > 0:
                raise SystemExit
            check_out(out)
            return fit_baseline(experiment, dataset, out)
        try:
            return _fit(experiment, dataset, out, fresh)
        except RecordError as error:
            raise RecordError(
                f"{error}; {out} has the bundle and all figures, and the same command records them "
                "without training again"
            ) from error


def _fit(experiment: Experiment, dataset: PreparedDataset, out: Path, fresh: bool) -> Run:
    start = plan_start(experiment.with_data(dataset.config), dataset, out)
    experiment = start.experiment
    dataset = start.catalogue.encoders.read(dataset)
    held_out = HeldOutParts.find(dataset, experiment.evaluation.request_time)
    _check_generated(experiment, dataset)
    candidates = choose_candidates(experiment.evaluation, dataset, "test", held_out.test)
    files = checkpoint_files(out, experiment, dataset)
    found = [None if fresh else file.read() for file in files]
    train = partial(train_all, start, dataset, held_out.valid, found)
    if process() > 0:
        train(report=lambda *_: None, save=lambda *_: None)
        raise SystemExit
    check_out(out)
    for file in files if fresh else ():
        file.remove()
    settings = experiment.family, flatten(experiment)
    latest = next((state for state in reversed(found) if state is not None), None)
    run_id, before = (None, 0.0) if latest is None else (latest.run_id, latest.seconds)
    with track(experiment, dataset, *settings, candidates, run_id) as tracker:
        reset_peak_memory()
        started = time.perf_counter() - before

        def save(index: int, state: TrainingState) -> None:
            seconds = time.perf_counter() - started
            files[index].write(replace(state, run_id=tracker.run_id, seconds=seconds))

        fitted = train(report=lambda epoch, metrics: tracker.log_metrics(metrics, epoch), save=save)
        seconds = time.perf_counter() - started
        final = final_scorer(experiment, dataset, held_out, fitted)
        run = evaluate_and_write(final, dataset, held_out, candidates, seconds, out, tracker)
    for file in files:
        file.remove()
    return run


class FinalScorer(NamedTuple):
    """A trained model, its count ensemble if it has one, and what validation says of both.

    On validation the model is that of the best epoch.
    """

    experiment: Experiment
    """With the precision that was settled on."""
    fitted: Fitted
    count_ensemble: CountEnsemble | None
    valid: RankTable
    """With the count ensemble."""
    valid_alone: RankTable
    temperature: float | None
    """Of the probabilities."""


def final_scorer(
    experiment: Experiment, dataset: PreparedDataset, held_out: HeldOutParts, fitted: Fitted
) -> FinalScorer:
    """Return the trained model, with its count ensemble weighed on validation if it has one.

    A refit has seen the validation targets: temperature and weights are those of the model before
    it, with counts of the training part. What is returned is counted on what the model has seen.
    """
    precision = fitted.curve.precision or experiment.training.precision
    experiment = experiment.with_training(precision=precision)
    num_items, seen = fitted.model.num_items, experiment.evaluation.seen
    _, ranks = fitted.curve.validated()
    alone = rank_table(ranks.numpy(), held_out.valid, "valid", num_items, seen)
    validated: Scorer = ModelScorer(fitted.validated, experiment.model.max_sequence_length)
    counts, valid = None, alone
    if (config := experiment.count_ensemble) is not None:
        with stage(f"weighing counts of {experiment.name}"):
            words = held_out.weighing, seen, config.weights
            counts, valid = choose_count_ensemble(validated, dataset, *words)
            validated = counts.added_to(validated)
            if held_out.weighing is not held_out.valid:
                valid = evaluate(validated, held_out.valid, "valid", seen)
            if "valid" in fitted.trained_on:
                known = counts.counts.settings, counts.recent_share
                counts = replace(counts, counts=counted(dataset, "test", *known))
    temperature = temperature_of(validated, held_out.valid, experiment.seed)
    return FinalScorer(experiment, fitted, counts, valid, alone, temperature)


def evaluate_and_write(
    final: FinalScorer,
    dataset: PreparedDataset,
    held_out: HeldOutParts,
    candidates: Candidates | None,
    seconds: float,
    out: Path,
    tracker: Tracker,
) -> Run:
    """Evaluate a trained model on the test targets; write and log the results.

    ``seconds`` are those of training and validation.
    """
    experiment, fitted, evaluation = final.experiment, final.fitted, final.experiment.evaluation
    longest, counts = experiment.model.max_sequence_length, final.count_ensemble
    model = ModelScorer(fitted.model, longest)
    scorer = model if counts is None else counts.added_to(model)
    tracker.tag("precision", experiment.training.precision)  # which "auto" became
    tracker.tag("trained_on", ", ".join(fitted.trained_on))
    if fitted.interrupted:
        tracker.tag("interrupted", "true")
    with stage(f"testing {experiment.name}", len(held_out.test.histories)) as line:
        shown_model = ReportingScorer(model, line.advance)
        tables, catalogue = evaluate_held_out(
            *(lambda some: shown_model.score(some.histories), dataset, held_out.test),
            *(evaluation, candidates, None if counts is None else counts.added_to),
        )
        made: dict[str, Scorer | ListMaker] = {"lists_test": scorer}
        if isinstance(fitted.model, SequenceToSequence):  # shows what generation adds
            generated = partial(generate_lists, fitted.model, longest)
            made = {"lists_test": generated, "lists_best_test": scorer}
        tables |= evaluate_lists(made, dataset, evaluation.seen, held_out.test)
    tables["ranks_valid"] = with_segments(final.valid, dataset, held_out.valid)
    if counts is not None:
        alone = with_segments(final.valid_alone, dataset, held_out.valid)
        tables["ranks_valid_model_alone"] = alone
    results = Results(evaluation.cutoffs, tables, catalogue)
    best_epoch, _ = fitted.curve.validated()
    costs = {
        "best_epoch": best_epoch,
        artifacts.FIT_SECONDS: seconds,
        artifacts.PARAMETERS: sum(weight.numel() for weight in fitted.model.parameters()),
    }
    costs |= peak_memory_mib()
    if counts is not None:
        costs |= {
            "count_ensemble_weight": counts.weight,
            "count_ensemble_repeat_weight": counts.repeat_weight,
            "count_ensemble_recent_weight": counts.recent_weight,
        }
    with new_folder(out) as folder:
        ModelBundle.write(
            *(folder / artifacts.BUNDLE, fitted.model, experiment, dataset),
            *(fitted.trained_on, git_commit(), counts, fitted.catalogue.encoders),
            final.temperature,
        )
        results.save(folder)
    results.log(tracker, out, costs)  # after they are safe on disk: a store may fail
    return Run(
        *(tracker.run_id, experiment.tracking, out / artifacts.BUNDLE, best_epoch),
        *(results.of_part("valid"), results.of_part("test"), seconds, results.headline),
    )


def _check_generated(experiment: Experiment, dataset: PreparedDataset) -> None:
    """Check, before hours of training, that the model can generate lists of the needed length."""
    model, length = experiment.model, next_list_length(dataset)
    if length and isinstance(model, SequenceToSequenceConfig) and model.max_generated < length:
        raise InputError(
            f"model.max_generated={model.max_generated}: must be at least {length}, the length of "
            f"the lists that {experiment.data.split} is evaluated with"
        )
