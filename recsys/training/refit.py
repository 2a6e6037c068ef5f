"""The training that chooses the epoch, and the one on everything but the test targets after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from rich.progress import Progress

from recsys.config import Experiment
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset, TrainedOn
from recsys.inference.catalogue import Catalogue
from recsys.model.build import Model
from recsys.training import processes
from recsys.training.callbacks import Report
from recsys.training.checkpoint import Checkpoint
from recsys.training.loop import train
from recsys.training.state import Curve, TrainingState

logger = logging.getLogger(__name__)

Keep = Callable[[TrainingState, Curve | None], None]
"""Takes the state of the training under way and, during the refit, the curve of the first one."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model."""

    model: Model
    trained_on: TrainedOn
    curve: Curve
    """Of the training that chose the epoch."""
    interrupted: bool
    """By Ctrl-C: the training ended early, or the refit was left out."""
    catalogue: Catalogue
    """What the model is made for."""


def train_and_refit(
    experiment: Experiment,
    dataset: PreparedDataset,
    catalogue: Catalogue,
    valid: Holdout,
    found: Checkpoint | None,
    report: Report,
    keep: Keep,
    progress: Progress | None,
) -> Fitted:
    """Train and choose the epoch; with ``training.refit`` train anew for as many epochs.

    Args:
        experiment: all settings.
        dataset: the prepared dataset.
        catalogue: its items.
        valid: the validation targets.
        found: where to go on; None: at the beginning.
        report: called after each epoch of the first training, and of those that are over already.
        keep: called with the state now and then, in the first process.
        progress: the view that shows it; None: one of its own.

    Raises:
        KeyboardInterrupt: by Ctrl-C; see `train`.
    """
    start, start_again = _starts(found, report)
    model, curve = train(
        experiment,
        catalogue,
        dataset.histories("valid"),
        valid,
        experiment.training.max_epochs,
        report,
        progress,
        start,
        lambda state: keep(state, None),
    )
    if not experiment.training.refit or curve.interrupted:
        return Fitted(model, ("train",), curve, curve.interrupted, catalogue)
    epochs, _ = curve.validated()
    logger.info("refit on all but the test targets, %d epochs", epochs)
    try:
        model, _ = train(
            experiment.model_copy(update={"name": f"{experiment.name} refit"}),
            catalogue,
            dataset.histories("test"),
            None,
            epochs,
            lambda *_: None,
            progress,
            start_again,
            lambda state: keep(state, curve),
        )
    except KeyboardInterrupt:
        if processes.count() > 1:
            raise
        logger.warning("refit stopped by Ctrl-C: keeping the model from before it")
        return Fitted(model, ("train",), curve, True, catalogue)
    return Fitted(model, ("train", "valid"), curve, False, catalogue)


def _starts(
    found: Checkpoint | None, report: Report
) -> tuple[TrainingState | None, TrainingState | None]:
    """Where the training starts, and where the refit does."""
    if found is None:
        return None, None
    curve = found.chosen or found.state.curve
    for epoch, figures in enumerate(curve.epochs, 1):
        report(epoch, figures)  # the record may have been lost
    phase = "the training" if found.chosen is None else "the refit"
    done = len(found.state.curve.epochs)
    logger.info("going on with %s from the checkpoint, after epoch %d", phase, done)
    if found.chosen is None:
        return found.state, None
    return TrainingState.at_the_end(found.chosen), found.state
