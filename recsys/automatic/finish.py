"""The end of a race: the winner trains on, its learning rate decays, and it is refitted."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from recsys.automatic.contender import Contender
from recsys.config import Experiment
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

_MARGIN = 1.1
"""Epochs vary: a plan counts them this much longer than measured."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished training."""

    experiment: Experiment
    """The settings that repeat it from the beginning."""
    fitted: Fitted

    @property
    def quality(self) -> float:
        """Validation NDCG@10 of the best epoch, before the refit."""
        return self.fitted.curve.best


def finish(contender: Contender, seconds_left: Callable[[], float]) -> Finished:
    """Train a contender to the end of the time that is left for it.

    The learning rate stays constant while validation gains, as long as time is left for the decay
    and for the refit on the training and validation parts together. The decay starts from the best
    state at the constant rate. So does the refit where the validation part is small, as in long
    histories, and then it costs as much as the decay; else it starts from the beginning.

    Args:
        contender: with at least one validation.
        seconds_left: returns how many seconds it may still take.
    """

    def must_decay(one: Contender) -> bool:
        # The refit has no validation, but more steps: an epoch is counted with both.
        epochs = one.epochs_left(one.epochs) + 1
        return seconds_left() < epochs * one.seconds_per_epoch * _MARGIN

    if not (contender.exhausted or contender.interrupted or must_decay(contender)):
        contender.advance(must_decay)
    per_epoch, left = max(contender.seconds_per_epoch, 1e-3) * _MARGIN, seconds_left()
    if contender.interrupted or left < per_epoch:
        return _as_it_is(contender)
    wanted, needed = contender.decay_epochs(), contender.epochs_left(contender.best_epoch)
    epochs = max(1, math.floor(wanted * min(1.0, left / per_epoch / needed)))
    model, curve = contender.decay(epochs)
    best_epoch, _ = curve.validated()
    experiment = contender.chosen_experiment(epochs)
    known = 0 if contender.refits_everything else contender.best_epoch
    if curve.interrupted or seconds_left() < (best_epoch - known) * per_epoch / 2:
        logger.warning("no time left for the refit: the validation part is not trained on")
        return Finished(
            experiment, Fitted(model, ("train",), curve, curve.interrupted, contender.catalogue)
        )
    refitted, _ = contender.refit(epochs, best_epoch)
    fitted = Fitted(refitted, ("train", "valid"), curve, False, contender.catalogue)
    return Finished(experiment, fitted)


def _as_it_is(contender: Contender) -> Finished:
    """Return the best epoch of a contender, without a decay."""
    model, curve = contender.best_model()
    fitted = Fitted(model, ("train",), curve, contender.interrupted, contender.catalogue)
    return Finished(contender.chosen_experiment(0), fitted)
