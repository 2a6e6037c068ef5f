"""The end of an automatic training: the refit, in which the learning rate decays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from recsys.automatic.contender import Contender
from recsys.automatic.refit import refit
from recsys.config import Experiment
from recsys.errors import InputError
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

_LATE = 0.8
"""A refit is begun if this share of its time is left: it is worth a little more than the limit."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished training."""

    experiment: Experiment
    """The settings that repeat it from the beginning."""
    fitted: Fitted


def finish(contender: Contender, seconds_left: Callable[[], float]) -> Finished:
    """Refit a contender on the training and validation parts.

    The refit starts from the state of the best epoch, and has as many epochs as the time allows. If
    there is no time for it, or it fails, the answer is the average that was validated.

    Args:
        contender: with at least one validation.
        seconds_left: returns how many seconds it may still take.
    """
    contender.ended_rising = not (contender.exhausted or contender.interrupted)
    model, curve = contender.best_model()
    hold = contender.best_epoch
    epochs = _affordable_decay(contender, seconds_left())
    experiment = contender.chosen_experiment(epochs or contender.ending.decay_epochs(hold))
    fitted = Fitted(model, ("train",), curve, contender.interrupted, contender.catalogue)
    if contender.interrupted:
        return Finished(experiment, fitted)
    if not epochs:
        logger.warning("no time left for the refit: the validation part is not trained on")
        return Finished(experiment, fitted)
    try:
        refitted = refit(contender, epochs, seconds_left)
    except KeyboardInterrupt:
        logger.warning("the refit was stopped by Ctrl-C: the validation part is not trained on")
        return Finished(experiment, replace(fitted, interrupted=True))
    except InputError as error:  # it diverged
        logger.warning("the validation part is not trained on: %s", error)
        return Finished(experiment, fitted)
    fitted = replace(fitted, model=refitted, trained_on=("train", "valid"))
    return Finished(experiment, fitted)


def _affordable_decay(contender: Contender, seconds: float) -> int:
    """Return the epochs of the decay of a refit of so many seconds; 0 if it has no time."""
    hold = contender.best_epoch
    wanted = contender.ending.long_decay_epochs(hold)
    fitting = (n for n in range(wanted, 0, -1) if contender.seconds_to_end(hold, n) <= seconds)
    least = _LATE * contender.seconds_to_end(hold, 1)
    return next(fitting, 1 if seconds >= least else 0)
