"""Config and prepared dataset in; trained bundle, figures and MLflow run out."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from recsys.config import (
    Experiment,
    SequenceToSequenceConfig,
    TrackingConfig,
    flatten,
)
from recsys.data.files import new_folder
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.candidates import choose_candidates
from recsys.evaluation.continuation import ContinuationTable
from recsys.evaluation.held_out import evaluate_held_out, refuse_empty
from recsys.evaluation.lists import evaluate_model_lists, list_length, list_summary
from recsys.evaluation.metrics import Interval, metric_names
from recsys.evaluation.model_scorer import ModelScorer
from recsys.evaluation.rank_table import RankTable
from recsys.evaluation.segments import with_segments
from recsys.evaluation.top_k_table import TopKTable
from recsys.model.recommender import Model
from recsys.scoring.bundle import ModelBundle, TrainedUntil
from recsys.training.callbacks import Curve
from recsys.training.curve import draw_learning_curve
from recsys.training.loop import train
from recsys.training.memory import forget_peak, peak_memory_mib
from recsys.training.tracking import Tracker, git_commit, track

logger = logging.getLogger(__name__)

_OUTPUTS = {
    *("bundle", "learning_curve.png"),
    *("ranks_valid.parquet", "ranks_test.parquet", "topk_test.parquet"),
    *("lists_test.parquet", "lists_best_test.parquet"),
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
    `recsys.evaluation.lists.list_summary`)."""
    seconds: float
    """Of training, validation and refit included."""


@dataclass(frozen=True, slots=True)
class _Fitted:
    model: Model
    trained_until: TrainedUntil
    curve: Curve


def fit(
    experiment: Experiment,
    dataset: PreparedDataset,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train, choose the best epoch on validation, evaluate once on test, and keep everything.

    Ctrl-C ends the training early, or the refit altogether, and goes on with the best epoch so far;
    the run is tagged ``interrupted`` then.

    Args:
        experiment: all settings but those of the data: the dataset's own take their place.
        dataset: the prepared dataset.
        out: folder for the bundle, the tables of ranks and lists and the learning curve
            (``runs/NAME`` if None); it appears when all is done, in place of that of an earlier
            run.
        progress: the view that shows it; None: one of its own.

    Raises:
        InputError: the dataset has nothing to train on or to evaluate, the model cannot write as
            many purchases as are held out, the candidates given lack a target, or ``out`` or the
            tracking store cannot be used.
    """
    out = Path(out) if out is not None else Path("runs") / experiment.name
    _check_out(out)
    experiment = experiment.model_copy(update={"data": dataset.config})
    _check_held_out(experiment, dataset)
    valid_part = dataset.holdout("valid", experiment.evaluation.request_time)
    length, seen = experiment.model.max_sequence_length, experiment.evaluation.seen
    candidates = choose_candidates(experiment.evaluation, dataset, "test")
    family, settings = experiment.model.family, flatten(experiment)
    with track(experiment, dataset, family, settings, candidates) as tracker:
        forget_peak()
        started = time.perf_counter()
        fitted = _train_and_refit(experiment, dataset, valid_part, tracker, progress)
        seconds = time.perf_counter() - started
        scorer = ModelScorer(fitted.model, length)
        test = evaluate_held_out(scorer, dataset, "test", experiment.evaluation, candidates)
        lists = evaluate_model_lists(
            fitted.model, length, dataset, "test", seen, experiment.evaluation.request_time
        )
        best_epoch, valid_ranks = fitted.curve.validated()
        valid = with_segments(valid_ranks, dataset)
        parameters = sum(weight.numel() for weight in fitted.model.parameters())
        costs = {"best_epoch": best_epoch, "fit_seconds": seconds, "parameters": parameters}
        costs |= peak_memory_mib()
        tables: dict[str, RankTable | ContinuationTable | TopKTable]
        tables = {"ranks_valid": valid, "ranks_test": test.ranks, "topk_test": test.best}
        tables |= {f"{name}_test": table for name, table in lists.items()}
        _write(out, experiment, dataset, fitted, tables)
        for path in sorted(out.iterdir()):  # after they are safe on disk: a store may fail
            tracker.log_path(path)
        names = metric_names(experiment.evaluation.cutoffs)
        valid_figures = valid.summary(names)
        test_figures = test.ranks.summary(names) | list_summary(lists)
        tracker.log_intervals("valid", valid_figures)
        tracker.log_intervals("test", test_figures)
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


def _train_and_refit(
    experiment: Experiment,
    dataset: PreparedDataset,
    valid_part: Holdout,
    tracker: Tracker,
    progress: Progress | None,
) -> _Fitted:
    model, curve = train(
        experiment,
        dataset.num_items,
        dataset.histories("valid"),
        valid_part,
        experiment.training.max_epochs,
        lambda epoch, figures: tracker.log_figures(figures, epoch),
        progress,
    )
    trained_until: TrainedUntil = "train"
    interrupted = curve.interrupted
    if experiment.training.refit and not interrupted:
        epochs, _ = curve.validated()
        logger.info("refit on all but the test targets, %d epochs", epochs)
        again = experiment.model_copy(update={"name": f"{experiment.name} refit"})
        histories = dataset.histories("test")
        try:
            model, _ = train(
                again, dataset.num_items, histories, None, epochs, lambda *_: None, progress
            )
            trained_until = "valid"
        except KeyboardInterrupt:
            interrupted = True
            logger.warning("refit stopped by Ctrl-C: keeping the model from before it")
    tracker.tag("trained_until", trained_until)
    if interrupted:
        tracker.tag("interrupted", "true")
    return _Fitted(model, trained_until, curve)


def _write(
    out: Path,
    experiment: Experiment,
    dataset: PreparedDataset,
    fitted: _Fitted,
    tables: Mapping[str, RankTable | ContinuationTable | TopKTable],
) -> None:
    with new_folder(out) as folder:
        ModelBundle.write(
            folder / "bundle",
            fitted.model,
            experiment,
            dataset,
            fitted.trained_until,
            git_commit(),
        )
        for name, table in tables.items():
            table.save(folder / f"{name}.parquet")
        draw_learning_curve(fitted.curve, experiment.name, folder / "learning_curve.png")


def _check_held_out(experiment: Experiment, dataset: PreparedDataset) -> None:
    """Before hours of training: is there something to evaluate on, and will the model do for it?"""
    refuse_empty(dataset, "valid")
    refuse_empty(dataset, "test")
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
