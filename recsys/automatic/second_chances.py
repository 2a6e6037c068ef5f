"""After the race: the winner trains on, and then those that need more time than the race gave."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from recsys.automatic.contender import Contender
from recsys.errors import InputError

logger = logging.getLogger(__name__)

_SHARE = 0.5
"""A second chance must have time for this share of the epochs after which the winner was best."""


def train_on(
    contenders: Sequence[Contender],
    seconds_left: Callable[[], float],
    announce: Callable[[str], None],
) -> list[Contender]:
    """Train the winner of a race at the constant rate, as long as it gains; then give others time.

    Rounds of equal time drop a kind of model that has few and long epochs. If the winner gains
    nothing more and time is left, those of them train on that were ahead of it after as many
    epochs. Time is kept for the decay and the refit of the best one.

    Args:
        contenders: as `race` returns them; the first one is the winner.
        seconds_left: returns how many seconds all the training may still take.
        announce: called with one line about what is tried next.

    Returns:
        The contenders, the best one on validation first.
    """
    best, *others = contenders
    announce(f"training {best.candidate.name}")
    _hold(best, seconds_left, 0.0)
    for other in sorted(others, key=lambda one: one.quality, reverse=True):
        if best.interrupted or not best.exhausted:
            break
        if other.latest is None or not other.ahead_of(best):
            continue
        hold = max(other.epochs + 1, math.ceil(_SHARE * best.best_epoch))
        if other.seconds_to_end(hold) > seconds_left():
            logger.info("%s: no time left for a second chance", other.candidate.name)
            continue
        logger.info(
            "%s gains nothing more; %s, which was ahead of it after %d epochs, trains on",
            *(best.candidate.name, other.candidate.name, other.epochs),
        )
        announce(f"a second chance for {other.candidate.name}")
        other.second_chance = True
        _hold(other, seconds_left, best.seconds_to_end(best.best_epoch))
        if other.quality > best.quality:
            best = other
        best.interrupted = other.interrupted
    rest = [one for one in contenders if one is not best]
    for one in rest:
        one.forget()
    return [best, *rest]


def _hold(one: Contender, seconds_left: Callable[[], float], kept: float) -> None:
    """Train at the constant rate while that gains and time is left for the end of the training.

    Args:
        one: with at least one validation.
        seconds_left: returns how many seconds are left.
        kept: the seconds that the end of another training needs.
    """

    def is_over(contender: Contender) -> bool:
        every = contender.experiment.training.validate_every
        next_decision = contender.seconds_of(every)
        end = contender.seconds_to_end(contender.epochs)
        return seconds_left() < next_decision + max(kept, end)

    if one.exhausted or one.interrupted or is_over(one):
        return
    try:
        one.advance(is_over)
    except InputError as error:  # it diverged
        logger.warning("%s: the best epoch before is used: %s", one.candidate.name, error)
