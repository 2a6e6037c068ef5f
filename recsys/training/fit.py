"""Config and prepared dataset in; trained bundle, figures and MLflow run out."""

from __future__ import annotations

import logging
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from recsys.config import Experiment
from recsys.data.files import new_folder
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.metrics import Interval, summarise
from recsys.evaluation.model_scorer import ModelScorer
from recsys.evaluation.rank_table import RankTable, evaluate
from recsys.scoring.bundle import ModelBundle, TrainedUntil
from recsys.training.curve import draw_learning_curve
from recsys.training.loop import train
from recsys.training.tracking import git_commit, track

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished experiment."""

    run_id: str
    """Of the MLflow run."""
    bundle: Path
    """Folder of the `ModelBundle`."""
    best_epoch: int
    """Epochs trained, chosen on validation."""
    valid: dict[str, Interval]
    """Validation figures of the best epoch."""
    test: dict[str, Interval]
    """Test figures of the bundle."""
    seconds: float
    """Of training, validation and refit included."""


def fit(
    experiment: Experiment, dataset: PreparedDataset, out: str | os.PathLike[str] | None = None
) -> Run:
    """Train, choose the best epoch on validation, evaluate once on test, and keep everything.

    Args:
        experiment: all settings; for the data, those the dataset was prepared with count.
        dataset: the prepared dataset.
        out: folder for the bundle, the rank tables and the learning curve (``runs/NAME`` if None);
            it appears when all is done, in place of that of an earlier run.

    Raises:
        InputError: the dataset has nothing to train on or to evaluate, or ``out`` or the tracking
            store cannot be used.
    """
    out = Path(out) if out is not None else Path("runs") / experiment.name
    _check_out(out)
    valid_part, test_part = dataset.holdout("valid"), dataset.holdout("test")
    if not len(valid_part.targets) or not len(test_part.targets):
        raise InputError(f"{dataset.path}: no user has three interactions: nothing to evaluate on")
    length, seen = experiment.model.max_sequence_length, experiment.evaluation.seen
    refit = experiment.training.refit
    with track(experiment, dataset, experiment.model.head.kind) as tracker:
        started = time.perf_counter()
        model, curve = train(
            experiment,
            dataset.num_items,
            dataset.histories("valid"),
            valid_part,
            experiment.training.max_epochs,
            lambda epoch, figures: tracker.log_figures(figures, epoch),
        )
        best_epoch = curve.best_epoch or 0
        valid = evaluate(ModelScorer(model, length), valid_part, "valid", seen)
        if refit:
            logger.info("refit on all but the test targets, %d epochs", best_epoch)
            histories = dataset.histories("test")
            model, _ = train(
                experiment, dataset.num_items, histories, None, best_epoch, lambda *_: None
            )
        seconds = time.perf_counter() - started
        test = evaluate(ModelScorer(model, length), test_part, "test", seen)
        trained_until: TrainedUntil = "valid" if refit else "train"
        with new_folder(out) as folder:
            bundle = folder / "bundle"
            ModelBundle.write(bundle, model, experiment, dataset, trained_until, git_commit())
            valid.save(folder / "ranks_valid.parquet")
            test.save(folder / "ranks_test.parquet")
            draw_learning_curve(curve, experiment.name, folder / "learning_curve.png")
            for path in sorted(folder.iterdir()):
                tracker.log_path(path)
        figures = _summaries(experiment, valid=valid, test=test)
        for part, summary in figures.items():
            tracker.log_intervals(part, summary)
        costs = {
            "best_epoch": best_epoch,
            "fit_seconds": seconds,
            "peak_memory_mib": peak_memory_mib(),
            "parameters": sum(weight.numel() for weight in model.parameters()),
        }
        tracker.log_figures(costs)
    return Run(
        tracker.run_id, out / "bundle", best_epoch, figures["valid"], figures["test"], seconds
    )


def peak_memory_mib() -> float:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _summaries(experiment: Experiment, **tables: RankTable) -> dict[str, dict[str, Interval]]:
    cutoffs = experiment.evaluation.cutoffs
    return {part: summarise(table.ranks, cutoffs) for part, table in tables.items()}


def _check_out(out: Path) -> None:
    """Before hours of training, not after: will the results have a place?"""
    if out.exists() and not (out / "bundle" / "manifest.json").is_file():
        raise InputError(f"{out}: exists and is not the folder of an earlier run; choose another")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent):
            pass
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from error
