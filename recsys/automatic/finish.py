"""The end of an automatic training: the refit, in which the learning rate decays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from recsys.automatic.contender import Contender
from recsys.automatic.refit import refit
from recsys.config import Experiment
from recsys.errors import InputError
from recsys.model.protocols import Model
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
    found = None if contender.interrupted else _refitted(contender, seconds_left)
    if found is not None:
        model, epochs = found
        curve = contender.best_state.copy().curve
        fitted = Fitted(model, ("train", "valid"), curve, False, contender.catalogue)
        return Finished(contender.chosen_experiment(epochs), fitted)
    model, curve = contender.best_model()
    fitted = Fitted(model, ("train",), curve, contender.interrupted, contender.catalogue)
    return Finished(contender.chosen_experiment(0), fitted)


def _refitted(contender: Contender, seconds_left: Callable[[], float]) -> tuple[Model, int] | None:
    """Return the refitted model and the epochs of its decay; None, and say why, if there is none.

    Ctrl-C is noted in the contender.
    """
    epochs = _affordable_decay(contender, seconds_left())
    if not epochs:
        logger.warning("no time left for the refit: the validation part is not trained on")
        return None
    try:
        return refit(contender, epochs, seconds_left), epochs
    except KeyboardInterrupt:
        contender.interrupted = True
        logger.warning("the refit was stopped by Ctrl-C: the validation part is not trained on")
    except InputError as error:  # it diverged
        logger.warning("the validation part is not trained on: %s", error)
    return None


def _affordable_decay(contender: Contender, seconds: float) -> int:
    """Return the epochs of the decay of a refit of so many seconds; 0 if it has no time."""
    hold = contender.best_epoch
    wanted = contender.ending.long_decay_epochs(hold)
    fitting = (n for n in range(wanted, 0, -1) if contender.seconds_to_end(hold, n) <= seconds)
    # Before the decay the rate may be constant for as little as an epoch.
    shortest = 1 + contender.ending.validation_is_large
    least = _LATE * contender.seconds_of_refit(shortest)
    return next(fitting, 1 if seconds >= least else 0)
