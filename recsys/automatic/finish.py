"""The end of an automatic training: the refit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from recsys.automatic.contender import Contender
from recsys.config import Experiment
from recsys.errors import InputError
from recsys.model.models import Model
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

_LATE = 0.8
"""A refit is begun if this share of an epoch's time is left: it is worth a little more than the
limit."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished training."""

    experiment: Experiment
    """The settings that repeat it from the beginning."""
    fitted: Fitted


def finish(contender: Contender, seconds_left: Callable[[], float]) -> Finished:
    """Refit a contender on the training and validation parts, for as many epochs as before.

    If time is short there are fewer; if there is no time for one, or it fails, the answer is the
    model that was validated.

    Args:
        contender: with at least one validation.
        seconds_left: returns how many seconds it may still take.
    """
    contender.ended_rising = not (contender.exhausted or contender.interrupted)
    refitted = None if contender.interrupted else _refitted(contender, seconds_left)
    model, curve = contender.best_model() if refitted is None else (refitted, contender.best_curve)
    fitted = Fitted(
        model,
        ("train",) if refitted is None else ("train", "valid"),
        curve,
        contender.interrupted,
        contender.catalogue,
    )
    return Finished(contender.chosen_experiment, fitted)


def _refitted(contender: Contender, seconds_left: Callable[[], float]) -> Model | None:
    """Return the refitted model; None, and say why, if there is none. Ctrl-C is noted."""
    if seconds_left() < _LATE * contender.seconds_of_refit(1):
        logger.warning("no time left for the refit: the validation part is not trained on")
        return None
    most, started = contender.best_epoch, time.monotonic()
    try:
        return contender.refit(
            lambda done: done >= most or seconds_left() < (time.monotonic() - started) / done
        )
    except KeyboardInterrupt:
        contender.interrupted = True
        logger.warning("the refit was stopped by Ctrl-C: the validation part is not trained on")
    except InputError as error:  # it diverged
        logger.warning("the validation part is not trained on: %s", error)
    return None
