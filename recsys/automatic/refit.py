"""The refit at the end of a race: the winner's training is repeated on all but the test targets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from recsys.automatic.contender import Contender
from recsys.data.histories import Histories
from recsys.model.protocols import Model
from recsys.training.loop import train
from recsys.training.state import TrainingState

logger = logging.getLogger(__name__)

_FOREVER = 100_000
"""More epochs than any training has."""


def refit(contender: Contender, epochs: int, best: int, seconds_left: Callable[[], float]) -> Model:
    """Repeat a training on the training and validation parts together; return the model.

    Where the validation part is small, only the decay is repeated, from the same state. Else the
    refit starts from the beginning, and its learning rate stays constant for as many epochs as
    before, or, if the machine has become slower, for as many as leave time for the decay.

    Args:
        contender: after its decay.
        epochs: of the decay.
        best: those of them after which validation was best.
        seconds_left: returns how many seconds the refit may still take.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    histories = contender.dataset.histories("test")
    if contender.best is None:
        raise ValueError("no epoch was validated")
    state = contender.best
    if contender.refits_everything:
        state = _hold(contender, histories, best, seconds_left)
    hold = len(state.curve.epochs)
    model, _ = train(
        contender.decaying(hold, epochs),
        contender.catalogue,
        histories,
        None,
        hold + epochs,
        lambda epoch, _: epoch >= hold + best,
        contender.progress,
        contender.before_decay(state, "test", epochs),
    )
    return model


def _hold(
    contender: Contender, histories: Histories, decay: int, seconds_left: Callable[[], float]
) -> TrainingState:
    """Train at a constant learning rate; return the state from which the rate decays."""
    started, planned = time.monotonic(), contender.best_epoch
    saved: list[TrainingState] = []

    def is_over(epoch: int, _: dict[str, float]) -> bool:
        per_epoch = (time.monotonic() - started) / epoch
        if epoch >= planned:
            return True
        if seconds_left() >= (decay + 1) * per_epoch:
            return False
        logger.info("the refit has %d of %d epochs at the constant rate", epoch, planned)
        return True

    train(
        contender.experiment,
        contender.catalogue,
        histories,
        None,
        _FOREVER,
        is_over,
        contender.progress,
        None,
        lambda state: saved.__setitem__(slice(None), [state]),
    )
    return saved[0]
