"""The refit at the end of a race: the winner trains on with all but the test targets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from recsys.automatic.contender import Contender
from recsys.automatic.refit_length import most_epochs
from recsys.model.protocols import Model
from recsys.training.loop import ENDLESS, train


def refit(contender: Contender, seconds_left: Callable[[], float]) -> Model:
    """Train on with the training and validation parts together; return the model.

    It starts from the state of the best epoch, at the same constant learning rate, and goes on with
    the average of the weights. It has as many epochs as that one if there is time for them, and one
    at least.

    Args:
        contender: at the end of its training.
        seconds_left: returns how many seconds the refit may still take.

    Raises:
        InputError: the training diverged.
        KeyboardInterrupt: Ctrl-C.
    """
    best, started = contender.best_state, time.monotonic()
    hold = len(best.curve.epochs)
    most = most_epochs(hold)

    def is_over(epoch: int, _: dict[str, float]) -> bool:
        contender.goes_on()
        done = epoch - hold
        per_epoch = (time.monotonic() - started) / done
        return done >= most or seconds_left() < per_epoch

    model, _ = train(
        contender.experiment,
        contender.catalogue,
        contender.dataset.histories("test"),
        None,
        ENDLESS,
        is_over,
        contender.progress,
        replace(best.copy(), average=best.curve.best_weights),
    )
    return model
