"""The end of an automatic training: the learning rate decays, and the model is refitted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from recsys.automatic.contender import Contender
from recsys.automatic.decay import decay, epochs_to_repeat
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
    """Let the rate of a contender decay, and refit it on the training and validation parts.

    Both start from the best state at the constant rate, and have as many epochs as the time allows.

    Args:
        contender: with at least one validation.
        seconds_left: returns how many seconds it may still take.
    """
    try:
        return _decay_and_refit(contender, seconds_left)
    except KeyboardInterrupt:
        contender.interrupted = True
    except InputError as error:  # it diverged
        logger.warning("%s: the best epoch before is used: %s", contender.candidate.name, error)
    return _as_it_is(contender)


def _decay_and_refit(contender: Contender, seconds_left: Callable[[], float]) -> Finished:
    stopped = contender.exhausted or contender.interrupted
    contender.ended_rising = not stopped
    epochs = _affordable_decay(contender, seconds_left())
    if contender.interrupted or epochs == 0:
        return _as_it_is(contender)
    model, curve = decay(contender, epochs)
    repeated = epochs_to_repeat(curve, contender.best_epoch)
    validated = Finished(
        contender.chosen_experiment(epochs),
        Fitted(model, ("train",), curve, curve.interrupted, contender.catalogue),
    )
    needed = contender.seconds_of_refit(repeated)
    if curve.interrupted or seconds_left() < _LATE * needed:
        logger.warning("no time left for the refit: the validation part is not trained on")
        return validated
    try:
        refitted = refit(contender, epochs, repeated, seconds_left)
    except KeyboardInterrupt:
        logger.warning("the refit was stopped by Ctrl-C: the validation part is not trained on")
        return validated
    except InputError as error:  # it diverged
        logger.warning("the validation part is not trained on: %s", error)
        return validated
    fitted = Fitted(refitted, ("train", "valid"), curve, False, contender.catalogue)
    return Finished(validated.experiment, fitted)


def _affordable_decay(contender: Contender, seconds: float) -> int:
    """Return the epochs of a decay that leave time for the refit, of so many seconds."""
    hold = contender.best_epoch
    wanted = contender.ending.long_decay_epochs(hold)
    fitting = (n for n in range(wanted, 0, -1) if contender.seconds_to_end(hold, n) <= seconds)
    return next(fitting, 1 if seconds >= contender.seconds_of(1) else 0)


def _as_it_is(contender: Contender) -> Finished:
    """Return the best epoch of a contender, without a decay."""
    model, curve = contender.best_model()
    fitted = Fitted(model, ("train",), curve, contender.interrupted, contender.catalogue)
    return Finished(contender.chosen_experiment(0), fitted)
