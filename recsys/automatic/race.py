"""Successive halving: candidates train side by side, and the slower half drops out each round.

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

logger = logging.getLogger(__name__)

FEWEST = 3
"""Validations of each contender in the first round at least."""


def race(
    contenders: Sequence[Contender], seconds: float, announce: Callable[[str], None]
) -> list[Contender]:
    """Train contenders in rounds of equal time, and drop the worse half after each round.

    Args:
        contenders: those that start; each is trained for at least one validation. Those that an
            interrupted race has dropped stay out.
        seconds: the time for all rounds.
        announce: called with one line about what is tried next.

    Returns:
        All of them, best first: by the round that they reached, then by validation NDCG@10. Ctrl-C
        ends the race, and the best one so far is marked as interrupted.

    Raises:
        KeyboardInterrupt: Ctrl-C before any validation.
    """
    field = [one for one in contenders if one.dropped_in is None]
    dropped = _ranked([one for one in contenders if one.dropped_in is not None])
    ended = time.monotonic() + seconds
    rounds = max(1, math.ceil(math.log2(len(field))))
    for number in range(1, rounds + 1):
        round_ends = time.monotonic() + (ended - time.monotonic()) / (rounds - number + 1)
        for position, contender in enumerate(field):
            if contender.exhausted:
                continue
            announce(
                f"round {number} of {rounds}: {contender.candidate.name} "
                f"({position + 1} of {len(field)})"
            )
            now = time.monotonic()
            deadline = now + max(0.0, round_ends - now) / (len(field) - position)
            try:
                contender.advance(partial(_is_over, deadline))
            except KeyboardInterrupt:
                if not any(one.points for one in contenders):
                    raise
                contender.interrupted = True
            if contender.interrupted:
                best, *others = _ranked([*field, *dropped])
                best.interrupted = True
                return [best, *others]
        field = _ranked(field)
        survivors = math.ceil(len(field) / 2)
        for loser in field[survivors:]:
            loser.dropped_in = number
            logger.info(
                "dropped after round %d: %s, validation NDCG@10 %.4f (the best has %.4f)",
                *(number, loser.candidate.name, loser.quality, field[0].quality),
            )
        dropped = field[survivors:] + dropped
        field = field[:survivors]
    return field + dropped


def choose_field(contenders: Sequence[Contender], seconds: float) -> list[Contender]:
    """Return those of the contenders that a race of so many seconds can compare.

    The cheapest one is trained for a validation, from which the time of the others is estimated.
    In the first round each must have time for `FEWEST` validations: after less, chance decides.

    Args:
        contenders: the most promising first.
        seconds: the time for the race.
    """
    cheapest = min(contenders, key=lambda one: one.candidate.cost)
    if not cheapest.points:
        cheapest.advance(lambda _: True)
    unit = cheapest.seconds / max(len(cheapest.points), 1) / cheapest.candidate.cost
    field: list[Contender] = []
    for one in sorted(contenders, key=lambda one: one.dropped_in is not None):
        wider = [*field, one]
        rounds = max(1, math.ceil(math.log2(len(wider))))
        needed = sum(unit * each.candidate.cost * FEWEST for each in wider)
        if field and needed * rounds > seconds:
            logger.info("%s: not raced, the time is too short to compare it", one.candidate.name)
            continue
        field = wider
    if len(field) == 1:
        return [cheapest]
    return field


def _is_over(deadline: float, contender: Contender) -> bool:
    """Return whether another epoch would end more than half of its time after the deadline."""
    return time.monotonic() + contender.seconds_per_epoch / 2 >= deadline


def _ranked(contenders: Sequence[Contender]) -> list[Contender]:
    return sorted(contenders, key=lambda one: one.quality, reverse=True)
