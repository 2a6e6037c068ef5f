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
_TIMING_SHARE = 0.2
"""The share of the race after which one epoch must do to estimate the time of the others."""
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

    A dropped contender that was ahead of the best one after as many epochs keeps its state: with
    more time it may be better (see `train_on`). The memory of the others is freed.

    Args:
        contenders: those that start; each is trained for at least one validation. Those that were
            dropped before, or were not to be raced, stay out.
        seconds: the time for all rounds.
        announce: called with one line about what is tried next.
        averages: whether those that the leader may be averaged with keep their states as well.

    Returns:
        All of them, best first: by the round that they reached, then by validation NDCG@10; those
        without a validation last. Ctrl-C ends the race, and the best one so far is marked as
        interrupted.

    Raises:
        KeyboardInterrupt: Ctrl-C before any validation.
        InputError: no contender can be trained.
    """
    field = [one for one in contenders if one.dropped_in is None]
    dropped = _ranked([one for one in contenders if one not in field and one.points])
    ended = time.monotonic() + seconds
    rounds = math.ceil(math.log2(len(field)))
    for number in range(1, rounds + 1):
        seconds_of_round = (ended - time.monotonic()) / (rounds - number + 1)
        announce_round = partial(_announce, announce, f"round {number} of {rounds}")
        try:
            field = _ranked(_run_round(field, number, seconds_of_round, announce_round))
        except (KeyboardInterrupt, InputError) as error:
            field = [one for one in dropped if one.best is not None][:1]
            if not field:
                raise
            field[0].interrupted = isinstance(error, KeyboardInterrupt)
            dropped.remove(field[0])
            break
        if any(one.interrupted for one in field):
            field[0].interrupted = True
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
        kept = partners([*field, *dropped]) if averages else []
        for one in dropped:
            if one not in kept and not one.ahead_of(field[0]):
                one.forget()
    known = field + dropped
    return known + _ranked([one for one in contenders if one not in known])


def _run_round(
    field: list[Contender], number: int, seconds: float, announce: Callable[[str], None]
) -> list[Contender]:
    """Train each contender for an equal part of the round; return those that can go on."""
    ended, left = time.monotonic() + seconds, list(field)
    most = _MOST_OF_A_SHARE * max(0.0, seconds) / len(field)
    for position, contender in enumerate(field):
        if any(one.interrupted for one in field):
            break
        if contender.exhausted:
            continue
        announce(f"{contender.candidate.name} ({position + 1} of {len(field)})")
        now = time.monotonic()
        share = max(0.0, ended - now) / (len(field) - position)
        try:
            contender.advance(partial(_is_over, now + share, now + most))
        except KeyboardInterrupt:
            if not any(one.points for one in left):
                raise
            contender.interrupted = True
        except InputError as error:  # it diverged, or does not fit into memory
            contender.failure = str(error)
            if contender.points:
                name = contender.candidate.name
                logger.warning("%s: the best epoch before is used: %s", name, error)
                continue
            if len(left) == 1:
                raise
            _drop_out(contender, number)
            left.remove(contender)
    return left


def _drop_out(one: Contender, number: int) -> None:
    """Drop one that failed before any validation."""
    logger.warning("%s drops out: %s", one.candidate.name, one.failure)
    one.dropped_in = number
    one.forget()


def _announce(announce: Callable[[str], None], where: str, what: str) -> None:
    announce(f"{where}: {what}")


def choose_field(contenders: Sequence[Contender], seconds: float) -> None:
    """Leave out those of the contenders that a race of so many seconds cannot compare.

    The cheapest one is trained for two epochs at least, from which the time of the others is
    estimated: the first one is slower. If it cannot be trained, the next one takes its place. In
    the first round each must have time for `FEWEST` validations: after less, chance decides. The
    state of the cheapest one is kept even so: all others may fail.

    Args:
        contenders: the most promising first.
        seconds: the time for the race.

    Raises:
        KeyboardInterrupt: Ctrl-C before any validation.
        InputError: none can be trained.
    """
    able = sorted(
        (one for one in contenders if not one.failure), key=lambda one: one.candidate.cost
    )
    while able[0].epochs < 2:  # else an interrupted race has timed it
        _time(able[0], _TIMING_SHARE * seconds, is_last=len(able) == 1)
        if able[0].points:
            break
        del able[0]
    cheapest = able[0]
    if cheapest.interrupted:
        return
    every = cheapest.experiment.training.validate_every
    unit = every * cheapest.seconds_per_epoch / cheapest.candidate.cost
    field: list[Contender] = []
    for one in (each for each in contenders if each in able):
        wider = [*field, one]
        rounds = max(1, math.ceil(math.log2(len(wider))))
        needed = sum(unit * each.candidate.cost * FEWEST for each in wider)
        if field and needed * rounds > seconds:
            logger.debug("%s: not raced, the time is too short to compare it", one.candidate.name)
            continue
        field = wider
    if len(field) == 1:
        field = [cheapest]
    for one in able:
        if one not in field:
            one.dropped_in = 0


def _time(cheapest: Contender, seconds: float, *, is_last: bool) -> None:
    """Train a contender for two epochs, or for one that takes so long or has a slow validation.

    It drops out if it fails before a validation; if it is the last one, that is an error.
    """
    try:
        cheapest.advance(
            lambda one: one.epochs > 1 or one.rarely > 1 or one.seconds > seconds,
        )
    except KeyboardInterrupt:
        if not cheapest.points:
            raise
        cheapest.interrupted = True
    except InputError as error:
        cheapest.failure = str(error)
        if not cheapest.points:
            if is_last:
                raise
            _drop_out(cheapest, 1)


def _is_over(deadline: float, latest: float, contender: Contender) -> bool:
    """Return whether another epoch would end more than half of its time after the deadline.

    Before so few validations that chance decides, the latest time counts: a kind of model may cost
    more than was estimated.
    """
    ends = latest if len(contender.points) < FEWEST else deadline
    return time.monotonic() + contender.seconds_per_epoch / 2 >= ends


def _ranked(contenders: Sequence[Contender]) -> list[Contender]:
    return sorted(contenders, key=lambda one: one.quality, reverse=True)


def partners(contenders: Sequence[Contender]) -> list[Contender]:
    """Return those that the first may be averaged with, at most two, the most promising first.

    They are of another kind, since models of one kind, such as two with a dot product, err alike.
    The most promising one is the best after as many epochs as the least trained one has. The other
    is the best one so far, for which there may be time if that one has few and long epochs. One
    that trains for a mean already is the only one. Those whose memory was freed are left out.
    """
    first, *others = contenders
    kind = first.candidate.experiment.model.family
    known = [
        one
        for one in others
        if one.latest is not None and one.candidate.experiment.model.family != kind
    ]
    if not known:
        return []
    if chosen := [one for one in known if one.is_partner]:
        return chosen[:1]
    compared = [one for one in known if len(one.points) >= FEWEST] or known
    shared = min(one.epochs for one in compared)
    promising = max(compared, key=lambda one: one.quality_after(shared))
    best = max(known, key=lambda one: one.quality)
    return [promising] if promising is best else [promising, best]
