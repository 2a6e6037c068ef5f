"""Two-step training: choose the epoch on validation, then refit on all but the test targets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.progress import Progress

from recsys.config import Experiment
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset, TrainedOn
from recsys.inference.catalogue import Catalogue
from recsys.model.protocols import Model
from recsys.training import processes
from recsys.training.callbacks import Report
from recsys.training.checkpoint import Checkpoint
from recsys.training.loop import train
from recsys.training.plan_length import longer
from recsys.training.precision import with_precision
from recsys.training.state import Curve, TrainingState
from recsys.training.warm_start import WarmStart

logger = logging.getLogger(__name__)

Save = Callable[[TrainingState, Curve | None], None]
"""Saves the state of the training under way and, during the refit, the curve of the first one."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model and how it was trained."""

    model: Model
    trained_on: TrainedOn
    curve: Curve
    """The curve of the training that chose the epoch."""
    interrupted: bool
    """Whether Ctrl-C ended the training early or skipped the refit."""
    catalogue: Catalogue
    """The catalogue that the model was built for."""

    def validated_model(self, experiment: Experiment, dataset: PreparedDataset) -> Model:
        """Return the model of the best epoch, which has not seen the validation targets."""
        if "valid" not in self.trained_on:
            return self.model
        restored = self.catalogue.restored_model(
            experiment.model, dataset.histories("valid"), self.curve.best_weights
        )
        return restored.to(self.model.items.weight.device)


def train_and_refit(
    experiment: Experiment,
    dataset: PreparedDataset,
    catalogue: Catalogue,
    valid: Holdout,
    found: Checkpoint | None,
    report: Report,
    save: Save,
    progress: Progress | None,
    warm: WarmStart | None = None,
) -> Fitted:
    """Train and choose the epoch; with ``training.refit`` train again for as many epochs.

    Both trainings of a warm start begin with its weights. If no epoch is better than these, there
    is nothing to repeat, and no refit. If only the validation part has new interactions, no epoch
    can be chosen, and the refit takes all that are planned.

    Args:
        experiment: all settings.
        dataset: the prepared dataset.
        catalogue: its items.
        valid: the validation targets.
        found: the checkpoint to resume from. If None, training starts from the beginning.
        report: called with each epoch of the first training, including those in the checkpoint.
        save: called with the state from time to time, in the first process.
        progress: the progress display. If None, a new one is shown.
        warm: the trained model to start from. If None, the weights are random.

    Raises:
        KeyboardInterrupt: Ctrl-C; see `train`.
        Terminated: SIGTERM.
    """
    planned = experiment.planned
    start, refit_start = _starts(found, report)
    histories, epochs = dataset.histories("valid"), planned.training.max_epochs
    only_refit = _only_refit(experiment, dataset, warm)
    if only_refit:
        epochs = 0
    model, curve = train(
        planned,
        catalogue,
        histories,
        valid,
        epochs,
        report,
        progress,
        _resumed(warm, start),
        lambda state: save(state, None),
    )
    if epochs and still_rising(curve, epochs):
        logger.info(
            "still rising: the best epoch, %d, was the last: train longer with %s",
            *(epochs, longer(experiment.training, 2 * experiment.training.max_epochs)),
        )
    if not experiment.training.refit or curve.interrupted:
        return Fitted(model, ("train",), curve, curve.interrupted, catalogue)
    epochs, _ = curve.validated()
    if only_refit:
        epochs = planned.training.max_epochs
    elif epochs == 0:
        logger.warning("no epoch was better than the start: its weights are used, without a refit")
        return Fitted(model, ("train",), curve, False, catalogue)
    logger.debug("refitting on all but the test targets for %d epochs", epochs)
    try:
        model, _ = train(
            with_precision(planned, curve.precision).model_copy(
                update={"name": f"{experiment.name} refit"}
            ),
            catalogue,
            dataset.histories("test"),
            None,
            epochs,
            lambda *_: None,
            progress,
            _resumed(warm, refit_start),
            lambda state: save(state, curve),
        )
    except KeyboardInterrupt:
        if processes.count() > 1:
            raise
        logger.warning("refit stopped by Ctrl-C: the model from before the refit is used")
        return Fitted(model, ("train",), curve, True, catalogue)
    return Fitted(model, ("train", "valid"), curve, False, catalogue)


def _only_refit(experiment: Experiment, dataset: PreparedDataset, warm: WarmStart | None) -> bool:
    """Return whether only the validation part has something new for a warm start to learn."""
    if warm is None or not experiment.training.refit:
        return False
    return warm.has_new(dataset.histories("test")) and not warm.has_new(dataset.histories("valid"))


def still_rising(curve: Curve, epochs: int) -> bool:
    """Was the last of the planned epochs the best, and the learning rate never cut for patience?"""
    return curve.early_decay is None and not curve.interrupted and curve.best_epoch == epochs


def _resumed(
    warm: WarmStart | None, state: TrainingState | None
) -> WarmStart | TrainingState | None:
    return state if warm is None else replace(warm, state=state)


def _starts(
    found: Checkpoint | None, report: Report
) -> tuple[TrainingState | None, TrainingState | None]:
    """Return the states that the training and the refit start from."""
    if found is None:
        return None, None
    curve = found.chosen or found.state.curve
    if curve.start:
        report(0, curve.start)
    for epoch, metrics in enumerate(curve.epochs, 1):
        report(epoch, metrics)  # the store may have lost them
    phase = "the training" if found.chosen is None else "the refit"
    done = len(found.state.curve.epochs)
    logger.info("resuming %s from the checkpoint, after epoch %d", phase, done)
    if found.chosen is None:
        return found.state, None
    return TrainingState.finished(found.chosen), found.state
