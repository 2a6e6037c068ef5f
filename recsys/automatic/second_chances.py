"""After the race: the winner trains on, and then those that need more time than the race gave."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from recsys.automatic.contender import Contender
from recsys.automatic.race import partners
from recsys.automatic.refit_length import fewest_epochs
from recsys.errors import InputError

logger = logging.getLogger(__name__)

_SHARE, _NEARLY = 0.5, 0.95
"""A second chance must have time for half of the epochs after which the winner had 95% of its best
NDCG@10: its last gains are slow, on Beauty half of its epochs."""


def train_on(
    contenders: Sequence[Contender],
    seconds_left: Callable[..., float],
    announce: Callable[[str], None],
    *,
    averages: bool = False,
) -> list[Contender]:
    """Train the winner of a race at the constant rate, as long as it gains; then give others time.

    Rounds of equal time drop a kind of model that has few and long epochs. If the winner gains
    nothing more and time is left, those of them train on that were ahead of it after as many
    epochs, as long as they are. Time is kept for the refit of the best one; and for its mean with
    one of another kind where there is enough, since that is worth more than a second chance. Ctrl-C
    ends it all, and the best one so far is marked as interrupted.

    Args:
        contenders: as `race` returns them.
        seconds_left: returns how many seconds training may still take if a contender, or the mean
            of two, is the answer.
        announce: called with one line about what is tried next.
        averages: whether the winner may be averaged; who may be its partner keeps its state.

    Returns:
        The contenders, the best one on validation first. The memory of the others is free.
    """
    try:
        _train_in_turn(contenders, seconds_left, announce, averages)
    except KeyboardInterrupt:
        _best(contenders).interrupted = True
    best = _best(contenders)
    best.interrupted = any(one.interrupted for one in contenders)
    rest = [one for one in contenders if one is not best]
    kept = partners([best, *rest]) if averages else []
    for one in rest:
        if one not in kept:
            one.forget()
    return [best, *rest]


def seconds_for_mean(winner: Contender, second: Contender) -> float:
    """Return the seconds that a mean needs at least: for the second model, and both ends.

    The second trains for as many epochs as a second chance needs, and its refit may be short.
    """
    epochs = max(second.best_epoch, epochs_to_train(second, winner))
    end = second.seconds_to_end(epochs, fewest_epochs(epochs))
    return winner.seconds_to_end(winner.best_epoch) + end


def partner_in_time(
    winner: Contender, others: Sequence[Contender], seconds_left: Callable[..., float]
) -> Contender | None:
    """Return the one that there is time to average the winner with; see `partners`."""
    for one in partners([winner, *others]):
        if seconds_for_mean(winner, one) <= seconds_left(winner, one):
            return one
    return None


def epochs_to_train(other: Contender, winner: Contender) -> int:
    """Return the epochs, all in all, after which another model may be compared with a winner.

    Training stops at validations only; it does not go on where it gains nothing more.
    """
    needed = math.ceil(_SHARE * winner.epochs_to(_NEARLY))
    if other.exhausted or other.epochs >= needed:
        return other.epochs
    every = other.experiment.training.validate_every
    return math.ceil(needed / every) * every


def _best(contenders: Sequence[Contender]) -> Contender:
    """Return the best one whose state is known; of equals the first."""
    return max((one for one in contenders if one.best is not None), key=lambda one: one.quality)


def _train_in_turn(
    contenders: Sequence[Contender],
    seconds_left: Callable[..., float],
    announce: Callable[[str], None],
    averages: bool,
) -> None:
    """See `train_on`."""
    best = _best(contenders)  # not the winner, if a run was killed after a second chance
    announce(f"training {best.candidate.name}")
    _train(best, seconds_left)
    others = [one for one in contenders if one is not best]
    for other in sorted(others, key=lambda one: one.quality, reverse=True):
        if best.interrupted or not best.exhausted:
            return
        if other.latest is None or not other.ahead_of(best):
            continue
        rest = [one for one in contenders if one is not best]
        second = partner_in_time(best, rest, seconds_left) if averages else None
        if other is second:
            continue  # it trains on for the mean
        epochs = max(other.epochs + 1, epochs_to_train(other, best))
        kept = best.seconds_to_end(best.best_epoch)
        needed = other.seconds_to_end(epochs)
        if second is not None:  # the mean comes first
            kept = seconds_for_mean(best, second)
            needed = max(needed, other.seconds_of(epochs - other.epochs) + kept)
        if needed > seconds_left(other):
            logger.info("%s: no time left for a second chance", other.candidate.name)
            continue
        logger.info(
            "%s gains nothing more; %s, which was ahead of it after %d epochs, trains on",
            *(best.candidate.name, other.candidate.name, other.epochs),
        )
        announce(f"a second chance for {other.candidate.name}")
        before = len(other.points)
        _train(other, seconds_left, kept, best)
        other.second_chance = len(other.points) > before
        if other.quality > best.quality:
            best = other
        if other.interrupted:
            return


def _train(
    one: Contender,
    seconds_left: Callable[..., float],
    kept: float = 0.0,
    winner: Contender | None = None,
) -> None:
    """Train at the constant rate while that gains and time is left for the end of the training.

    Args:
        one: with at least one validation.
        seconds_left: see `train_on`.
        kept: seconds for the end of another one, if that should be the better one.
        winner: the one that it must stay ahead of after as many epochs, if any: else its second
            chance is over.
    """

    def is_over(contender: Contender) -> bool:
        every = contender.experiment.training.validate_every
        coming = contender.seconds_of(every)  # until the next decision
        needed = max(coming + kept, contender.seconds_to_end(contender.epochs + every))
        behind = winner is not None and not contender.ahead_of(winner)
        return behind or seconds_left(contender) < needed

    hold(one, is_over)


def hold(one: Contender, is_over: Callable[[Contender], bool]) -> None:
    """Train at the constant rate while that gains, until ``is_over`` after a validation."""
    if one.exhausted or one.interrupted or is_over(one):
        return
    try:
        one.advance(is_over)
    except InputError as error:
        one.failure = str(error)
        logger.warning("%s: the best epoch before is used: %s", one.candidate.name, error)
