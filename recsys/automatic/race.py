"""Successive halving: candidates train side by side, and the worse half drops out each round.

Source: Jamieson and Talwalkar 2016, https://arxiv.org/abs/1502.07943. Rounds are counted in seconds
and not in epochs, because the best model within a time limit is wanted.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from recsys.automatic.contender import Contender
from recsys.errors import InputError

logger = logging.getLogger(__name__)

FEWEST = 3
"""Validations of each contender in the first round at least."""
_MOST_OF_A_SHARE = 1.5
"""How much longer than its share of a round a contender may take for them."""


def race(
    contenders: Sequence[Contender],
    seconds: float,
    announce: Callable[[str], None],
    *,
    averages: bool = False,
) -> list[Contender]:
    """Train contenders in rounds of equal time, and drop the worse half after each round.

    The memory of those that are dropped is freed. If all that are raced fail, those that were left
    out take their places, the cheapest first.

    Args:
        contenders: those that start; each is trained for at least one validation. Those that were
            dropped before, or were not to be raced, stay out.
        seconds: the time for all rounds.
        announce: called with one line about what is tried next.
        averages: whether those that the leader may be averaged with keep their states.

    Returns:
        All of them, best first: by the round that they reached, then by validation NDCG@10; those
        without a validation last. Ctrl-C ends the race, and the best one so far is marked as
        interrupted.

    Raises:
        KeyboardInterrupt: Ctrl-C before any validation.
        InputError: no contender can be trained.
    """
    field = [one for one in contenders if one.dropped_in is None]
    dropped = _ranked([one for one in contenders if one not in field and one.best is not None])
    try:
        field, dropped = _run_rounds(field, dropped, seconds, announce, averages)
    except KeyboardInterrupt:
        if not dropped:
            raise
        dropped[0].interrupted = True
        field = []
    spare = sorted((one for one in contenders if one.dropped_in == 0), key=_cost)
    for one in () if field or dropped else spare:
        one.dropped_in = None
        field = _run_round([one], 1, 0.0, announce, "in place of those that failed")
        if field:
            break
    if not field:
        if not dropped:
            raise InputError(next(one.failure for one in contenders if one.failure))
        field, dropped = dropped[:1], dropped[1:]
    if any(one.interrupted for one in field):
        field[0].interrupted = True
    known = field + dropped
    return known + _ranked([one for one in contenders if one not in known])


def _run_rounds(
    field: list[Contender],
    dropped: list[Contender],
    seconds: float,
    announce: Callable[[str], None],
    averages: bool,
) -> tuple[list[Contender], list[Contender]]:
    """Halve the field in each round; return those that are left, and those that dropped out."""
    ended = time.monotonic() + seconds
    rounds = max(1, math.ceil(math.log2(max(1, len(field)))))
    for number in range(1, rounds + 1):
        seconds_of_round = (ended - time.monotonic()) / (rounds - number + 1)
        where = f"round {number} of {rounds}"
        field = _ranked(_run_round(field, number, seconds_of_round, announce, where))
        if not field or any(one.interrupted for one in field):
            break
        survivors = math.ceil(len(field) / 2)
        for loser in field[survivors:]:
            logger.debug(
                "dropped after round %d: %s, validation NDCG@10 %.4f (the best has %.4f)",
                *(number, loser.candidate.name, loser.quality, field[0].quality),
            )
            loser.dropped_in = number
        dropped = field[survivors:] + dropped
        field = field[:survivors]
        for one in dropped:
            if not averages or _family(one) == _family(field[0]):
                one.forget()
    return field, dropped


def _run_round(
    field: list[Contender],
    number: int,
    seconds: float,
    announce: Callable[[str], None],
    where: str,
) -> list[Contender]:
    """Train each contender for an equal part of the round; return those that can go on."""
    ended, left = time.monotonic() + seconds, list(field)
    most = _MOST_OF_A_SHARE * max(0.0, seconds) / max(1, len(field))
    for position, contender in enumerate(field):
        if any(one.interrupted for one in field):
            break
        if contender.exhausted:
            continue
        name = contender.candidate.name
        announce(f"{where}: {name} ({position + 1} of {len(field)})")
        now = time.monotonic()
        share = max(0.0, ended - now) / (len(field) - position)
        try:
            contender.advance(partial(_is_over, now + share, now + most))
        except KeyboardInterrupt:
            if not any(one.points for one in left):
                raise
            contender.interrupted = True
        except InputError as error:  # it diverged, does not fit into memory, or has a fault
            contender.failure = str(error)
            if contender.points:
                logger.warning("%s: the best epoch before is used: %s", name, error)
                continue
            logger.warning("%s drops out: %s", name, error)
            contender.dropped_in = number
            contender.forget()
            left.remove(contender)
    return left


def choose_field(contenders: Sequence[Contender], seconds: float) -> None:
    """Leave out those of the contenders that a race of so many seconds cannot compare.

    In the first round each must have time for `FEWEST` validations: after less, chance decides.

    Args:
        contenders: the most promising first.
        seconds: the time for the race.
    """
    field: list[Contender] = []
    for one in contenders:
        wider = [*field, one]
        rounds = max(1, math.ceil(math.log2(len(wider))))
        needed = FEWEST * sum(each.expected_seconds for each in wider)
        if not field or needed * rounds <= seconds:
            field = wider
    if len(field) == 1:
        field = [min(contenders, key=_cost)]
    for one in contenders:
        if one not in field:
            logger.debug("%s: not raced, the time is too short to compare it", one.candidate.name)
            one.dropped_in = 0


def _is_over(deadline: float, latest: float, contender: Contender) -> bool:
    """Return whether another epoch would end more than half of its time after the deadline.

    Before so few validations that chance decides, the latest time counts: a kind of model may cost
    more than was estimated.
    """
    ends = latest if len(contender.points) < FEWEST else deadline
    return time.monotonic() + contender.seconds_per_epoch / 2 >= ends


def _ranked(contenders: Sequence[Contender]) -> list[Contender]:
    return sorted(contenders, key=lambda one: one.quality, reverse=True)


def _cost(contender: Contender) -> float:
    return contender.candidate.cost


def _family(contender: Contender) -> str:
    return contender.candidate.experiment.model.family


def partners(contenders: Sequence[Contender]) -> list[Contender]:
    """Return those that the first may be averaged with, the most promising first.

    They are of another kind, since models of one kind, such as two with a dot product, err alike;
    and they are compared after as many epochs as the least trained one has. One that trains for a
    mean already is the only one. Those whose memory was freed are left out.
    """
    first, *others = contenders
    known = [one for one in others if one.latest is not None and _family(one) != _family(first)]
    if chosen := [one for one in known if one.is_partner]:
        return chosen[:1]
    known = [one for one in known if len(one.points) >= FEWEST] or known
    shared = min((one.epochs for one in known), default=0)
    return sorted(known, key=lambda one: one.quality_after(shared), reverse=True)
