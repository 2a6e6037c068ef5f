"""Two-step training: choose the epoch on validation, then refit on all but the test targets."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from rich.progress import Progress

from recsys.config import AveragedConfig, Experiment
from recsys.data.prepared import PreparedDataset, TrainedOn
from recsys.data.splits import Holdout
from recsys.inference.catalogue import Catalogue
from recsys.model.models import Model
from recsys.training.checkpoints import Checkpoint, TrainingState
from recsys.training.device import processes, training_device, with_precision
from recsys.training.epochs import Curve, Report
from recsys.training.loop import WarmStart, build_batches, train

logger = logging.getLogger(__name__)

Save = Callable[[TrainingState, Curve | None], None]
"""Saves the state of the training under way and, during the refit, the curve of the first one."""

_ENOUGH_STEPS = 2_000
"""The steps of a training for which no epochs are named; it ends earlier without gains."""
_STEPS_TO_VALIDATION = 50


def with_enough_epochs(
    experiment: Experiment, dataset: PreparedDataset, named: Collection[str] | None = None
) -> Experiment:
    """Return an experiment with as many epochs as have 2,000 steps, if it does not name fewer.

    ``validate_every`` and ``patience`` grow with them, to some 50 steps and ten times as many,
    unless one of them is named. ``named`` are the fields of ``training`` that count as named; if
    None, those that were set.
    """
    model, training = experiment.model, experiment.training
    named = training.model_fields_set if named is None else named
    members = model.members if isinstance(model, AveragedConfig) else ()
    if "max_epochs" in named or any(member.max_epochs is not None for member in members):
        return experiment
    steps = len(build_batches(experiment, dataset.histories("valid")))
    epochs = math.ceil(_ENOUGH_STEPS / steps)
    if epochs <= training.max_epochs:
        return experiment
    changes = {"max_epochs": epochs}
    if not {"validate_every", "patience"} & set(named):
        every = math.ceil(_STEPS_TO_VALIDATION / steps)
        changes |= {"validate_every": every, "patience": training.patience * every}
    logger.debug("an epoch has only %d steps: training: %s", steps, changes)
    return experiment.model_copy(update={"training": training.model_copy(update=changes)})


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
    is no refit. If only the validation part has new interactions, no epoch can be chosen, and the
    refit takes all that are planned. ``found`` is resumed from; ``report`` gets the epochs of the
    first training. See `train`.
    """
    planned, state = experiment.planned, None if found is None else found.state
    histories, epochs = dataset.histories("valid"), planned.training.max_epochs
    only_refit = (
        warm is not None
        and experiment.training.refit
        and warm.has_new(dataset.histories("test"))
        and not warm.has_new(histories)
    )
    if found is not None:
        _report_again(found, report)
    if found is not None and found.chosen is not None:
        curve = found.chosen
        model = catalogue.restored_model(experiment.model, histories, curve.best_weights)
        model = model.to(training_device())
    else:
        planned_epochs = 0 if only_refit else epochs
        model, curve = train(
            *(planned, catalogue, histories, valid, planned_epochs, report, progress, state),
            save=lambda state: save(state, None),
            warm=warm,
        )
        state = None
    decayed = curve.early_decay is not None
    if not (only_refit or decayed or curve.interrupted) and curve.best_epoch == epochs:
        logger.info(
            "still rising: the best epoch, %d, was the last: train longer with "
            "--set training.max_epochs=%d",
            *(epochs, 2 * experiment.training.max_epochs),
        )
    if not experiment.training.refit or curve.interrupted:
        return Fitted(model, ("train",), curve, curve.interrupted, catalogue)
    if not only_refit:
        epochs, _ = curve.validated()
    if epochs == 0:
        logger.warning("no epoch was better than the start: its weights are used, without a refit")
        return Fitted(model, ("train",), curve, False, catalogue)
    logger.debug("refitting on all but the test targets for %d epochs", epochs)
    again = with_precision(planned, curve.precision)
    try:
        model, _ = train(
            again.model_copy(update={"name": f"{experiment.name} refit"}),
            *(catalogue, dataset.histories("test"), None, epochs, lambda *_: None, progress, state),
            save=lambda state: save(state, curve),
            warm=warm,
        )
    except KeyboardInterrupt:
        if processes() > 1:
            raise
        logger.warning("refit stopped by Ctrl-C: the model from before the refit is used")
        return Fitted(model, ("train",), curve, True, catalogue)
    return Fitted(model, ("train", "valid"), curve, False, catalogue)


def _report_again(found: Checkpoint, report: Report) -> None:  # the store may have lost its epochs
    curve, phase = found.state.curve, "the training"
    if found.chosen is not None:
        curve, phase = found.chosen, "the refit"
    for epoch, metrics in enumerate((curve.start, *curve.epochs)):
        if metrics:
            report(epoch, metrics)
    done = len(found.state.curve.epochs)
    logger.info("resuming %s from the checkpoint, after epoch %d", phase, done)
