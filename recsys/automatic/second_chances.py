"""After the race: the winner trains on, and then those that need more time than the race gave."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from recsys.automatic.contender import Contender
from recsys.automatic.race import runner_up
from recsys.errors import InputError

logger = logging.getLogger(__name__)

SHARE, NEARLY = 0.5, 0.95
"""A second chance must have time for half of the epochs after which the winner had 95% of its best
NDCG@10: its last gains are slow, on Beauty half of its epochs."""


def train_on(
    contenders: Sequence[Contender],
    seconds_left: Callable[[Contender], float],
    announce: Callable[[str], None],
    *,
    averages: bool = False,
) -> list[Contender]:
    """Train the winner of a race at the constant rate, as long as it gains; then give others time.

    Rounds of equal time drop a kind of model that has few and long epochs. If the winner gains
    nothing more and time is left, those of them train on that were ahead of it after as many
    epochs. Time is kept for the decay and the refit of the best one. Ctrl-C ends it all, and the
    best one so far is marked as interrupted.

    Args:
        contenders: as `race` returns them.
        seconds_left: returns how many seconds training may still take if a contender is the answer.
        announce: called with one line about what is tried next.
        averages: whether the best one of another kind keeps its state, for a mean of both.

    Returns:
        The contenders, the best one on validation first. The memory of the others is free.
    """
    try:
        _train_in_turn(contenders, seconds_left, announce)
    except KeyboardInterrupt:
        _best(contenders).interrupted = True
    best = _best(contenders)
    best.interrupted = any(one.interrupted for one in contenders)
    rest = [one for one in contenders if one is not best]
    kept = runner_up([best, *rest]) if averages else None
    for one in rest:
        if one is not kept:
            one.forget()
    return [best, *rest]


def _best(contenders: Sequence[Contender]) -> Contender:
    """Return the best one whose state is known; of equals the first."""
    return max((one for one in contenders if one.best is not None), key=lambda one: one.quality)


def _train_in_turn(
    contenders: Sequence[Contender],
    seconds_left: Callable[[Contender], float],
    announce: Callable[[str], None],
) -> None:
    """See `train_on`."""
    best = _best(contenders)  # not the winner, if a run was killed after a second chance
    announce(f"training {best.candidate.name}")
    _train(best, seconds_left, None)
    others = [one for one in contenders if one is not best]
    for other in sorted(others, key=lambda one: one.quality, reverse=True):
        if best.interrupted or not best.exhausted:
            return
        if other.latest is None or not other.ahead_of(best):
            continue
        hold = max(other.epochs + 1, math.ceil(SHARE * best.epochs_to(NEARLY)))
        if other.seconds_to_end(hold) > seconds_left(other):
            logger.info("%s: no time left for a second chance", other.candidate.name)
            continue
        logger.info(
            "%s gains nothing more; %s, which was ahead of it after %d epochs, trains on",
            *(best.candidate.name, other.candidate.name, other.epochs),
        )
        announce(f"a second chance for {other.candidate.name}")
        before = len(other.points)
        _train(other, seconds_left, best)
        other.second_chance = len(other.points) > before
        if other.quality > best.quality:
            best = other
        if other.interrupted:
            return


def _train(
    one: Contender, seconds_left: Callable[[Contender], float], leader: Contender | None
) -> None:
    """Train at the constant rate while that gains and time is left for the end of the training.

    Args:
        one: with at least one validation.
        seconds_left: see `train_on`.
        leader: another one for whose end time is kept too.
    """

    def is_over(contender: Contender) -> bool:
        every = contender.experiment.training.validate_every
        coming = contender.seconds_of(every)  # until the next decision
        if leader is not None:
            end = leader.seconds_to_end(leader.best_epoch)
            if seconds_left(leader) < coming + end:
                return True
        return seconds_left(contender) < coming + contender.seconds_to_end(contender.epochs)

    hold(one, is_over)


def hold(one: Contender, is_over: Callable[[Contender], bool]) -> None:
    """Train at the constant rate while that gains, until ``is_over`` after a validation."""
    if one.exhausted or one.interrupted or is_over(one):
        return
    try:
        one.advance(is_over)
    except InputError as error:
        one.diverged = True
        logger.warning("%s: the best epoch before is used: %s", one.candidate.name, error)
