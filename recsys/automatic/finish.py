"""The end of a race: the winner trains on, its learning rate decays, and it is refitted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from recsys.automatic.contender import Contender
from recsys.automatic.refit import refit
from recsys.config import Experiment
from recsys.errors import InputError
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

_MARGIN = 1.1
"""Epochs vary: a plan counts them this much longer than measured."""
_LATE = 0.8
"""A refit is begun if this share of its time is left: it is worth a little more than the limit."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished training."""

    experiment: Experiment
    """The settings that repeat it from the beginning."""
    fitted: Fitted


def finish(contender: Contender, seconds_left: Callable[[], float]) -> Finished:
    """Train a contender to the end of the time that is left for it.

    The learning rate stays constant while validation gains, as long as time is left for the decay
    and for the refit on the training and validation parts together. Both start from the best state
    at the constant rate.

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
    def must_decay(one: Contender) -> bool:
        every = one.experiment.training.validate_every  # the next decision is so many epochs away
        epochs = one.epochs_left(one.epochs, one.decay_epochs(one.epochs)) + every
        return seconds_left() < epochs * one.seconds_per_epoch * _MARGIN

    if not (contender.exhausted or contender.interrupted or must_decay(contender)):
        contender.advance(must_decay)
    contender.ended_rising = not (contender.exhausted or contender.interrupted)
    per_epoch = max(contender.seconds_per_epoch, 1e-3) * _MARGIN
    epochs = _affordable_decay(contender, seconds_left() / per_epoch)
    if contender.interrupted or epochs == 0:
        return _as_it_is(contender)
    model, curve = contender.decay(epochs)
    best = max(curve.validated()[0] - contender.best_epoch, 1)
    validated = Finished(
        contender.chosen_experiment(epochs),
        Fitted(model, ("train",), curve, curve.interrupted, contender.catalogue),
    )
    needed = best * contender.refit_cost * per_epoch
    if curve.interrupted or seconds_left() < _LATE * needed:
        logger.warning("no time left for the refit: the validation part is not trained on")
        return validated
    try:
        refitted = refit(contender, epochs, best, seconds_left)
    except KeyboardInterrupt:
        logger.warning("the refit was stopped by Ctrl-C: the validation part is not trained on")
        return validated
    fitted = Fitted(refitted, ("train", "valid"), curve, False, contender.catalogue)
    return Finished(validated.experiment, fitted)


def _affordable_decay(contender: Contender, epochs: float) -> int:
    """Return the epochs of a decay that leave time for the refit, of so many epochs of time."""
    hold, wanted = contender.best_epoch, contender.decay_epochs()
    fitting = (n for n in range(wanted, 0, -1) if contender.epochs_left(hold, n) <= epochs)
    return next(fitting, 1 if epochs >= 1 else 0)


def _as_it_is(contender: Contender) -> Finished:
    """Return the best epoch of a contender, without a decay."""
    model, curve = contender.best_model()
    fitted = Fitted(model, ("train",), curve, contender.interrupted, contender.catalogue)
    return Finished(contender.chosen_experiment(0), fitted)
