"""The race: baselines are tuned, racers train in rungs of equal time, and the winner trains on.

Successive halving: after each rung the worse half drops out. Source: Jamieson and Talwalkar 2016,
https://arxiv.org/abs/1502.07943. Rungs are counted in seconds and not in epochs, because the best
model within a time limit is wanted.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

from recsys.automatic.racer import Course, Racer
from recsys.automatic.state import MeasuredBaseline
from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment
from recsys.errors import InputError
from recsys.experiments.baselines import baselines_of

logger = logging.getLogger(__name__)

_BASELINE_SHARE = 0.06
"""Share of the limit for tuning baselines; those that cost more than counting begin in the first
quarter of it alone."""
_FIRST = ("transitions_and_repeats", "pctm")
"""Those that are most often the best, if time is short."""
_COSTLY = ("item_knn", "ease", "matrix_factorisation")
_SLOW_ITEMS = {"ease": 6_000, "item_knn": 30_000, "matrix_factorisation": 100_000}
"""The catalogues above which a baseline is not tried, because its fit alone takes minutes."""

_RACE, _TRAINING = 0.4, 0.65
"""Shares of the training time after which the race, and the training, end; then comes the refit.
NDCG@10 with counts was .0442, .0451 and .0450 after a refit of about a quarter, half and as many of
the epochs before it on Sports; .0764, .0774, .0776 on Beauty."""
_FEWEST = 3
"""Validations of each racer in the first rung at least: after less, chance decides."""
_MOST_OF_A_TURN = 1.5
"""How much longer than its equal part of a rung a racer may take for them."""
_MOST_MEMBERS = 3
"""Models in a mean at most: each is read when users are served."""
_REFIT = 0.5
"""A refit of half as many epochs as before it gives as much as one of as many (see `_TRAINING`)."""
_SHARE, _NEARLY = 0.5, 0.95
"""A second model needs half of the epochs after which the winner had 95% of its best NDCG@10: the
winner's last gains are slow, on Beauty half of its epochs."""


def tune_baselines(course: Course, protocol: Experiment) -> None:
    """Tune the baselines, the most promising first; those that time is too short for are named.

    When their time is over, the settings of the last one that were not tried yet are left out.

    Raises:
        KeyboardInterrupt: Ctrl-C, which keeps those that were tuned.
    """
    state, clock = course.state, course.clock
    names = sorted(baselines_of(protocol, course.dataset), key=lambda name: name not in _FIRST)
    share = _BASELINE_SHARE * clock.limit
    until = state.begin("baselines", clock.spent) + share
    known = {baseline.name for baseline in state.baselines}
    for number, name in enumerate(names, 1):
        if name in known:
            continue
        if clock.spent > until - (name in _COSTLY) * 0.75 * share:
            logger.debug("baseline %s: not tried, the time of the baselines is over", name)
            continue
        if course.dataset.num_items > _SLOW_ITEMS.get(name, course.dataset.num_items):
            logger.debug("baseline %s: not tried with %d items", name, course.dataset.num_items)
            continue
        course.say(f"baseline {number} of {len(names)}: {name}")
        began, seen = time.monotonic(), protocol.evaluation.seen
        best = BASELINES[name].measure(
            course.dataset, course.valid, seen, lambda: clock.spent > until
        )
        seconds = time.monotonic() - began
        logger.debug("baseline %s: validation NDCG@10 %.4f, %.1f s", name, best.ndcg_at_10, seconds)
        measured = best.ndcg_at_10, best.fit_seconds, best.rank_seconds
        state.baselines.append(MeasuredBaseline(name, repr(best.settings), seconds, *measured))
        state.baselines.sort(key=lambda baseline: baseline.ndcg_at_10, reverse=True)
        state.write(clock.spent)


def choose_field(racers: Sequence[Racer], seconds: float) -> None:
    """Leave out those that a race of so many seconds cannot compare; the most promising come first.

    In the first rung each must have time for `_FEWEST` validations.
    """
    field: list[Racer] = []
    for racer in racers:
        wider = [*field, racer]
        needed = _FEWEST * sum(raced.expected_interval for raced in wider) * _num_rungs(wider)
        if not field or needed <= seconds:
            field = wider
    if len(field) == 1:
        field = [min(racers, key=lambda racer: racer.kind.cost)]
    for racer in racers:
        if racer not in field:
            logger.debug("%s: not raced, the time is too short to compare it", racer.name)
            racer.rung = 0


def race(course: Course, racers: list[Racer]) -> list[Racer]:
    """Train racers in rungs of equal time, and drop the worse half after each.

    The memory of those that are dropped is freed, unless a mean with them may be tried. If all that
    are raced fail, those that were left out take their places, the cheapest first.

    Returns:
        All of them, best first: by the rung that they reached, then by validation NDCG@10; those
        without a validation last.

    Raises:
        InputError: none can be trained.
    """
    clock, until = course.clock, course.moment(_RACE)
    if not any(racer.points or racer.rung is not None for racer in racers):
        choose_field(racers, until - clock.spent)
    field = [racer for racer in racers if racer.rung is None]
    left_out = [racer for racer in racers if racer.rung == 0]
    left_out.sort(key=lambda racer: racer.kind.cost)
    rungs = _num_rungs(field)
    for rung in range(1, rungs + 1):
        seconds = (until - clock.spent) / (rungs - rung + 1)
        field = _run_rung(course, field, seconds, f"rung {rung} of {rungs}")
        while not field and left_out:
            racer = left_out.pop(0)
            racer.rung = None
            field = _run_rung(course, [racer], 0.0, "in place of those that failed")
        if not field:
            raise InputError(next(racer.failure for racer in racers if racer.failure))
        survivors = math.ceil(len(field) / 2)
        for loser in field[survivors:]:
            logger.debug(
                "dropped after rung %d: %s, validation NDCG@10 %.4f (the best has %.4f)",
                *(rung, loser.name, loser.quality, field[0].quality),
            )
            loser.rung = rung
        field = field[:survivors]
        for racer in racers:
            if racer not in field and not (course.averages and racer.family != field[0].family):
                racer.forget()
    return sorted(racers, key=_merit, reverse=True)


def _run_rung(course: Course, field: list[Racer], seconds: float, where: str) -> list[Racer]:
    """Train each racer for an equal part of a rung; return those with a validation, best first."""
    clock, seconds = course.clock, max(0.0, seconds)
    ends = clock.spent + seconds
    for number, racer in enumerate(field):
        course.say(f"{where}: {racer.name} ({number + 1} of {len(field)})")
        turn = max(0.0, ends - clock.spent) / (len(field) - number)
        latest = clock.spent + _MOST_OF_A_TURN * seconds / len(field)
        racer.train(clock.spent + turn, _FEWEST, latest)
    return sorted((racer for racer in field if racer.points), key=_merit, reverse=True)


def train_on(course: Course, ranked: Sequence[Racer]) -> list[Racer]:
    """Train the winner of a race on while it gains; then others for a mean, if time is left.

    Returns:
        The winner, one of another kind if it has trained for long enough, and the winner's kind
        again with other seeds, `_MOST_MEMBERS` in all.
    """
    winner, clock = ranked[0], course.clock
    course.say(f"training {winner.name}")
    winner.train(course.moment(_TRAINING, winner))
    members = [winner]
    if not course.averages:
        return members
    for other in partners(ranked):
        until = course.moment(_TRAINING, winner, other)
        missing = _SHARE * winner.epochs_to(_NEARLY) - other.epochs
        if missing > 0 and not other.exhausted:
            if clock.spent + missing * other.seconds_per_epoch > until:
                continue
            course.say(f"training {other.name}, for the mean with {winner.name}")
        other.train(until)
        members.append(other)
        break
    while len(members) < _MOST_MEMBERS:
        # The refits of all, the new one's like the winner's, come after its training.
        refits = sum(racer.best_epoch * racer.seconds_per_refit_epoch for racer in members)
        refits += winner.best_epoch * winner.seconds_per_refit_epoch
        until = course.moment(1.0, *members, winner) - _REFIT * refits
        seconds = winner.best_epoch * winner.seconds_per_epoch
        if clock.spent + seconds > until:
            break
        again = Racer.ready(winner.kind.again(len(members)), course)
        again.is_again = True
        course.state.add(again)
        course.say(f"training {again.name}, for a mean")
        again.train(clock.spent + seconds)
        if not again.points:
            break
        members.append(again)
    return members


def partners(ranked: Sequence[Racer]) -> list[Racer]:
    """Return those that the first may be averaged with, the most promising first.

    They are of another kind, since models of one kind, such as two with a dot product, err alike;
    and they are compared after as many epochs as the least trained one has. Those whose memory was
    freed are left out.
    """
    winner, *others = ranked
    known = [racer for racer in others if racer.best is not None and racer.family != winner.family]
    known = [racer for racer in known if len(racer.points) >= _FEWEST] or known
    epochs = min((racer.epochs for racer in known), default=0)
    return sorted(known, key=lambda racer: racer.quality_after(epochs), reverse=True)


def _num_rungs(field: Sequence[Racer]) -> int:
    return max(1, math.ceil(math.log2(max(1, len(field)))))


def _merit(racer: Racer) -> tuple[bool, float, float]:
    rung = math.inf if racer.rung is None else racer.rung
    return bool(racer.points), rung, racer.quality
