"""The refit at the end of a race: the winner's training is repeated on all but the test targets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from recsys.automatic.contender import Contender
from recsys.data.histories import Histories
from recsys.model.protocols import Model
from recsys.training.loop import ENDLESS, train
from recsys.training.state import TrainingState

logger = logging.getLogger(__name__)


def refit(contender: Contender, epochs: int, seconds_left: Callable[[], float]) -> Model:
    """Train on the training and validation parts together; return the model.

    The refit starts from the state of the best epoch, and its learning rate decays. Where the
    validation part is large, the rate stays constant for some epochs before that, as long as time
    is left for the decay.

    Args:
        contender: at the end of its training at the constant rate.
        epochs: of the decay.
        seconds_left: returns how many seconds the refit may still take.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    histories = contender.dataset.histories("test")
    state = contender.best_state
    if contender.ending.validation_is_large:
        state = _hold(contender, histories, epochs, seconds_left)
    hold = len(state.curve.epochs)

    def is_over(epoch: int, _: dict[str, float]) -> bool:
        contender.goes_on()
        return epoch >= hold + epochs

    model, _ = train(
        contender.decaying(hold, epochs),
        contender.catalogue,
        histories,
        None,
        hold + epochs,
        is_over,
        contender.progress,
        contender.before_decay(state, epochs),
    )
    return model


def _hold(
    contender: Contender, histories: Histories, decay: int, seconds_left: Callable[[], float]
) -> TrainingState:
    """Train on from the best state at a constant learning rate; return the state after that."""
    best = contender.best_state
    before = len(best.curve.epochs)
    planned = contender.ending.refit_epochs(before)
    started = time.monotonic()
    saved = [best]

    def is_over(epoch: int, _: dict[str, float]) -> bool:
        contender.goes_on()
        done = epoch - before
        per_epoch = (time.monotonic() - started) / done
        if done < planned and seconds_left() >= (decay + 1) * per_epoch:
            return False
        logger.info("the refit has %d epochs at the constant rate, %d were planned", done, planned)
        return True

    train(
        contender.constant,
        contender.catalogue,
        histories,
        None,
        ENDLESS,
        is_over,
        contender.progress,
        contender.before_decay(best, decay),
        lambda state: saved.__setitem__(0, state),
    )
    return saved[0]
