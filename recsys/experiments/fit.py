"""Config and prepared dataset in; trained bundle, figures and MLflow run out."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.config import (
    Experiment,
    SequenceToSequenceConfig,
    TrackingConfig,
    flatten,
)
from recsys.data.files import new_folder
from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.candidates import Candidates, choose_candidates
from recsys.evaluation.held_out import evaluate_held_out, refuse_part
from recsys.evaluation.metrics.ranks import Interval, metric_names
from recsys.evaluation.next_lists import evaluate_model_lists, list_length, list_summary
from recsys.evaluation.segments import with_segments
from recsys.evaluation.tables.next_list import NextListTable
from recsys.evaluation.tables.rank import RankTable, evaluate
from recsys.evaluation.tables.top_k import TopKTable
from recsys.experiments.count_weights import weigh_counts
from recsys.experiments.curve import draw_learning_curve
from recsys.inference.catalogue import Catalogue
from recsys.inference.scorer import Scorer
from recsys.serving.bundle import ModelBundle, model_scorer
from recsys.tracking.tracker import Tracker, decisive_facts, git_commit, track
from recsys.training import processes
from recsys.training.checkpoint import Checkpoint, CheckpointFile
from recsys.training.process_memory import forget_peak, peak_memory_mib
from recsys.training.refit import Fitted, train_and_refit
from recsys.training.state import Curve, TrainingState

logger = logging.getLogger(__name__)

_OUTPUTS = {
    *("bundle", "learning_curve.png"),
    *("ranks_valid.parquet", "ranks_test.parquet", "topk_test.parquet"),
    *("lists_test.parquet", "lists_best_test.parquet"),
    *("ranks_valid_model_alone.parquet", "ranks_test_model_alone.parquet"),
}
"""What there may be in the folder of a run."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished experiment."""

    run_id: str
    """Of the MLflow run."""
    tracking: TrackingConfig
    """Where that is."""
    bundle: Path
    """Folder of the `ModelBundle`."""
    best_epoch: int
    """Epochs trained, chosen on validation."""
    valid: dict[str, Interval]
    """Validation figures of the best epoch."""
    test: dict[str, Interval]
    """Test figures of the bundle; those of its lists too where the split holds out several
    purchases per user (``next_...``; of a model that writes, ``best_next_...`` too: see
    `recsys.evaluation.next_lists.list_summary`)."""
    seconds: float
    """Of training, validation and refit included."""


def fit(
    experiment: Experiment,
    dataset: PreparedDataset,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    fresh: bool = False,
) -> Run:
    """Train, choose the best epoch on validation, evaluate once on test, and keep everything.

    Ctrl-C ends the training early, or the refit altogether, and goes on with the best epoch so far;
    the run is tagged ``interrupted`` then. A run that was cut off otherwise goes on from its
    checkpoint, ``OUT.checkpoint``, and ends as if nothing had happened.

    Processes that torchrun has started train together. The first one evaluates, writes and returns;
    the others end with the training.

    Args:
        experiment: all settings but those of the data: the dataset's own take their place.
        dataset: the prepared dataset.
        out: folder for the bundle, the tables of ranks and lists and the learning curve
            (``runs/NAME`` if None); it appears when all is done, in place of that of an earlier
            run.
        progress: the view that shows it; None: one of its own.
        fresh: start anew, whatever checkpoint there is.

    Raises:
        InputError: the dataset has nothing to train on or to evaluate, the model cannot write as
            many purchases as are held out, a feature that it reads is not to be had, the candidates
            given lack a target, the checkpoint is of other settings or data, or ``out`` or the
            tracking store cannot be used.
        SystemExit: in every process but the first of several; after a SIGTERM.
    """
    processes.join()
    out = Path(out) if out is not None else Path("runs") / experiment.name
    experiment = experiment.model_copy(update={"data": dataset.config})
    _check_held_out(experiment, dataset)
    candidates = choose_candidates(experiment.evaluation, dataset, "test")
    catalogue = Catalogue.of(experiment.model, dataset)
    dataset = catalogue.encoders.read(dataset)
    file = _checkpoint_file(out, experiment, dataset)
    found = None if fresh else file.read()
    if not processes.is_first():
        train_and_refit(
            experiment, dataset, catalogue, found, lambda *_: None, lambda *_: None, progress
        )
        sys.exit()
    _check_out(out)
    if fresh:
        file.remove()
    family, settings = experiment.family, flatten(experiment)
    again, before = (None, 0.0) if found is None else (found.run_id, found.seconds)
    with track(experiment, dataset, family, settings, candidates, again) as tracker:
        forget_peak()
        started = time.perf_counter() - before

        def keep(state: TrainingState, chosen: Curve | None) -> None:
            seconds = time.perf_counter() - started
            file.write(Checkpoint(tracker.run_id, seconds, state, chosen))

        fitted = train_and_refit(
            experiment, dataset, catalogue, found, tracker.log_epoch, keep, progress
        )
        seconds = time.perf_counter() - started
        run = _evaluate_and_write(experiment, dataset, fitted, candidates, seconds, out, tracker)
    file.remove()
    return run


def _evaluate_and_write(
    experiment: Experiment,
    dataset: PreparedDataset,
    fitted: Fitted,
    candidates: Candidates | None,
    seconds: float,
    out: Path,
    tracker: Tracker,
) -> Run:
    length, evaluation = experiment.model.max_sequence_length, experiment.evaluation
    tracker.tag("trained_on", ", ".join(fitted.trained_on))
    if fitted.interrupted:
        tracker.tag("interrupted", "true")
    scorer, count_ensemble, valid_ranks, alone = _with_counts(
        experiment, dataset, fitted, candidates
    )
    test = evaluate_held_out(scorer, dataset, "test", evaluation, candidates)
    lists = evaluate_model_lists(
        fitted.model,
        scorer,
        length,
        dataset,
        "test",
        evaluation.seen,
        evaluation.request_time,
    )
    valid = with_segments(valid_ranks, dataset)
    parameters = sum(weight.numel() for weight in fitted.model.parameters())
    best_epoch, _ = fitted.curve.validated()
    costs = {"best_epoch": best_epoch, "fit_seconds": seconds, "parameters": parameters}
    costs |= peak_memory_mib()
    if count_ensemble is not None:
        costs["count_ensemble_weight"] = count_ensemble.weight
        costs["count_ensemble_repeat_weight"] = count_ensemble.repeat_weight
    tables: dict[str, RankTable | NextListTable | TopKTable]
    tables = {"ranks_valid": valid, "ranks_test": test.ranks, "topk_test": test.best}
    tables |= {f"{name}_test": table for name, table in lists.items()}
    tables |= {
        f"ranks_{part}_model_alone": with_segments(table, dataset) for part, table in alone.items()
    }
    _write(out, experiment, dataset, fitted, count_ensemble, tables)
    for path in sorted(out.iterdir()):  # after they are safe on disk: a store may fail
        tracker.log_path(path)
    names = metric_names(experiment.evaluation.cutoffs)
    valid_figures = valid.summary(names)
    test_figures = test.ranks.summary(names) | list_summary(lists)
    tracker.log_intervals("valid", valid_figures)
    tracker.log_intervals("test", test_figures)
    for part, table in alone.items():
        figures = table.summary(names)
        tracker.log_intervals(part, {f"model_alone_{name}": figures[name] for name in names})
    of_lists = {f"test/{name}": value for name, value in test.figures.items()}
    tracker.log_figures(costs | of_lists)
    return Run(
        run_id=tracker.run_id,
        tracking=experiment.tracking,
        bundle=out / "bundle",
        best_epoch=best_epoch,
        valid=valid_figures,
        test=test_figures,
        seconds=seconds,
    )


class _Final(NamedTuple):
    """What a run is judged by, once counts are weighed beside its model."""

    scorer: Scorer
    count_ensemble: CountEnsemble | None
    valid: RankTable
    """Of the validation targets by the model of the best epoch, with any counts."""
    alone: dict[Part, RankTable]
    """Without them, by part; nothing where there are none."""


def _with_counts(
    experiment: Experiment,
    dataset: PreparedDataset,
    fitted: Fitted,
    candidates: Candidates | None,
) -> _Final:
    _, valid = fitted.curve.validated()
    scorer, evaluation = model_scorer(fitted.model, experiment), experiment.evaluation
    if experiment.count_ensemble is None:
        return _Final(scorer, None, valid, {})
    holdout = dataset.holdout("test", evaluation.request_time)
    test = evaluate(scorer, holdout, "test", evaluation.seen, candidates=candidates)
    count_ensemble, weighed = weigh_counts(experiment.count_ensemble, experiment, dataset, fitted)
    return _Final(
        count_ensemble.added_to(scorer), count_ensemble, weighed, {"valid": valid, "test": test}
    )


def _checkpoint_file(out: Path, experiment: Experiment, dataset: PreparedDataset) -> CheckpointFile:
    """Beside the folder of the run."""
    store = {
        "tracking.uri": experiment.tracking.absolute_uri,
        "tracking.experiment": experiment.tracking.experiment,
    }
    facts = decisive_facts(dataset, experiment.family, flatten(experiment)) | store
    return CheckpointFile(out.with_name(f"{out.name}.checkpoint"), facts)


def _write(
    out: Path,
    experiment: Experiment,
    dataset: PreparedDataset,
    fitted: Fitted,
    count_ensemble: CountEnsemble | None,
    tables: Mapping[str, RankTable | NextListTable | TopKTable],
) -> None:
    with new_folder(out) as folder:
        ModelBundle.write(
            folder / "bundle",
            fitted.model,
            experiment,
            dataset,
            fitted.trained_on,
            git_commit(),
            count_ensemble,
            fitted.catalogue.encoders,
        )
        for name, table in tables.items():
            table.save(folder / f"{name}.parquet")
        draw_learning_curve(fitted.curve, experiment.name, folder / "learning_curve.png")


def _check_held_out(experiment: Experiment, dataset: PreparedDataset) -> None:
    """Before hours of training: is there something to evaluate on, and will the model do for it?"""
    refuse_part(dataset, "valid", experiment.evaluation.request_time)
    refuse_part(dataset, "test", experiment.evaluation.request_time)
    model, length = experiment.model, list_length(dataset)
    if length and isinstance(model, SequenceToSequenceConfig) and model.max_generated < length:
        raise InputError(
            f"model.max_generated={model.max_generated}: must be at least {length}, the length of "
            f"the lists that {experiment.data.split} is evaluated with"
        )


def _check_out(out: Path) -> None:
    """Before hours of training, not after: will the results have a place?"""
    if out.exists():
        there = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
        if foreign := there - _OUTPUTS:
            raise InputError(f"{out}: exists and is left alone: {min(foreign)} is not of a run")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent):
            pass
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from error
