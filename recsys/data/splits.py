"""A split is three numbers per user, where its parts end; and the targets of a part.

Cut points [U, 3] count each user's interactions, oldest first: training is ``[0, cut 0)``,
validation ``[cut 0, cut 1)`` and test ``[cut 1, cut 2)``. Timestamps [N] ascend for each user,
whose interactions begin at ``offsets`` [U + 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from recsys.config.data import (
    Backtest,
    GlobalTime,
    LeaveLastBasketOut,
    LeaveLastOut,
    Split,
    UserHoldout,
    time_value,
)
from recsys.data.histories import Bools, Histories, Int32s, Int64s, span_indices
from recsys.data.times import time_like
from recsys.errors import InputError

BLOCK = 1 << 20
"""Interactions that are read at a time, so that no mapped array is held as a whole."""
SplitChoice = Callable[[Int64s, Int64s], Split | None]
"""Returns another split for the sorted log with these times [N] and offsets [U + 1], or None."""


def cut_points(split: Split, timestamps: Int64s, offsets: Int64s) -> Int32s:
    """Return the cut points [U, 3] of a split; one without training or test rows is refused."""
    lengths = np.diff(offsets)
    match split:
        case LeaveLastOut():
            return leave_last_out(lengths, split.targets)
        case LeaveLastBasketOut():
            return _by_blocks(leave_last_basket_out, timestamps, offsets)
        case GlobalTime():
            cuts = _cut_times(split, timestamps)
            return _by_blocks(lambda t, ends: global_time(t, ends, cuts), timestamps, offsets)
        case UserHoldout():
            return user_holdout(lengths, split)
    raise InputError(
        "data.split: a backtest has one dataset per fold and cannot be prepared as one: see "
        "recsys backtest"
    )


def _by_blocks(
    cut: Callable[[Int64s, Int64s], Int32s], timestamps: Int64s, offsets: Int64s
) -> Int32s:
    """Cut blocks of users, so that times may be mapped from a file that is larger than memory."""
    blocks = [offsets[low : high + 1] for low, high in user_blocks(offsets)]
    cuts = (cut(np.asarray(timestamps[ends[0] : ends[-1]]), ends - ends[0]) for ends in blocks)
    return np.concatenate([*cuts])


def leave_last_out(lengths: Int64s, targets: int = 1) -> Int32s:
    """Hold out the last interactions of users with so many [U], and as many for validation.

    At least one interaction is always left for training: a user with too few for both parts has
    only test targets, and a user with too few for these has none.

    >>> leave_last_out(np.array([1, 2, 3, 10])).tolist()
    [[1, 1, 1], [1, 1, 2], [1, 2, 3], [8, 9, 10]]
    """
    test = np.where(lengths > targets, lengths - targets, lengths)
    valid = np.where(lengths > 2 * targets, test - targets, test)
    return np.stack([valid, test, lengths], axis=1).astype(np.int32)


def leave_last_basket_out(timestamps: Int64s, offsets: Int64s) -> Int32s:
    """Hold out the last basket for test, and the one before it for validation.

    A basket is all interactions of a user at one time. At least one is always left for training.

    >>> leave_last_basket_out(np.array([1, 1, 5, 9, 9, 3, 4, 4]), np.array([0, 5, 8])).tolist()
    [[2, 3, 5], [1, 1, 3]]
    """
    edges = np.append(np.flatnonzero(_begins_a_time(timestamps, offsets)), len(timestamps))
    before = np.searchsorted(edges, offsets)  # baskets of all earlier users
    ends: Int64s = edges[before[:-1, None] + leave_last_out(np.diff(before))]
    return (ends - offsets[:-1, None]).astype(np.int32)


def global_time(timestamps: Int64s, offsets: Int64s, cuts: Sequence[float]) -> Int32s:
    """Start validation for all users at the first of two times, and test at the second.

    >>> global_time(np.array([1, 4, 5, 9, 5, 8]), np.array([0, 4, 6]), (5, 8)).tolist()
    [[2, 3, 4], [0, 1, 2]]
    """
    points = [np.add.reduceat(timestamps < cut, offsets[:-1], dtype=np.int32) for cut in cuts]
    return np.stack([*points, np.diff(offsets).astype(np.int32)], axis=1)


def _cut_times(split: GlobalTime, timestamps: Int64s) -> tuple[float, float]:
    """Return the times at which validation and test begin."""
    rows, usual = len(timestamps), kth_latest(timestamps, (len(timestamps) + 1) // 2)
    if split.test_from is not None:
        test = time_like(split.test_from, usual)
    else:
        test = kth_latest(timestamps, max(1, round(split.test_fraction * rows)))
    held_out = int(np.count_nonzero(timestamps >= test))
    if split.valid_from is not None:
        valid = time_like(split.valid_from, usual)
    else:
        later = held_out + max(1, round(split.valid_fraction * rows))
        valid = kth_latest(timestamps, min(later, rows))
    first, last = int(timestamps.min()), int(timestamps.max())
    is_empty = split.valid_from is not None and valid == test  # else many rows have that time
    if held_out == 0 or is_empty or not first < valid <= test:
        raise InputError(
            f"data.split: {split} begins validation at {valid:.15g} and test at {test:.15g}, and "
            f"leaves no training or no test interactions: times run from {first} to {last}"
        )
    return valid, test


def kth_latest(times: Int64s, k: int) -> int:
    """Return the k-th latest of N times, from 1 to N, without holding or sorting them all."""
    low, high = int(times.min()), int(times.max())
    while low < high:  # 25 passes for a year of seconds
        middle = high - (high - low) // 2
        is_later = np.count_nonzero(times >= middle) >= k
        low, high = (middle, high) if is_later else (low, middle - 1)
    return low


def user_holdout(lengths: Int64s, split: UserHoldout) -> Int32s:
    """Assign each user, with all interactions, to training, validation or test, at random.

    A user with n interactions [U] has the cuts (n, n, n) in training, (0, n, n) in validation and
    (0, 0, n) in test. At least one user is in each.
    """
    fractions = split.valid_fraction, split.test_fraction
    valid, test = (max(1, round(fraction * len(lengths))) for fraction in fractions)
    if valid + test >= len(lengths):
        raise InputError(
            f"data.split: of {len(lengths)} users {valid} are for validation and {test} for test: "
            "none is left for training"
        )
    drawn = np.random.default_rng(split.seed).permutation(len(lengths))
    cuts = np.repeat(lengths[:, None], 3, axis=1)
    cuts[drawn[: valid + test], 0] = 0
    cuts[drawn[:test], 1] = 0
    return cuts.astype(np.int32)


def folds(backtest: Backtest, times: Int64s) -> tuple[GlobalTime, ...]:
    """Return the split of each fold: its test part ends where that of the next one begins.

    The times [N] are those of all interactions since `data.since`; a backtest with cuts reads none.

    >>> for fold in folds(Backtest(folds=2, test_fraction=0.25), np.arange(100, 108)):
    ...     print(fold.test_from, fold.test_until)
    104 106
    106 None
    """
    rows = [backtest.test_fraction * len(times) * n for n in range(backtest.folds, 0, -1)]
    cuts = backtest.cuts or tuple(kth_latest(times, max(1, round(count))) for count in rows)
    if any(time_value(late) <= time_value(early) for early, late in pairwise(cuts)):
        raise InputError(
            f"data.split: {backtest}: folds must begin one after the other: cuts do not ascend, or "
            "the log has too few times"
        )
    return tuple(
        GlobalTime(
            test_from=begin,
            test_until=end,
            valid_fraction=backtest.valid_fraction,
            targets=backtest.targets,
            history=backtest.history,
        )
        for begin, end in zip(cuts, (*cuts[1:], None), strict=True)
    )


def user_blocks(offsets: Int64s) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive users with at most `BLOCK` interactions, or of one user."""
    low, users = 0, len(offsets) - 1
    while low < users:
        fitting = int(np.searchsorted(offsets, offsets[low] + BLOCK, side="right")) - 1
        high = max(low + 1, fitting)
        yield low, high
        low = high


# --- Targets and what precedes them ---------------------------------------------------------------


def find_targets(
    split: Split, timestamps: Int64s, offsets: Int64s, starts: Int64s, ends: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Find the Q targets of a part, which has the interactions ``starts`` to ``ends`` of users [U].

    Returns the row of each target's user [Q], the position of the target among the N interactions
    [Q], ascending, and where its history ends [Q] (exclusive): it starts at the user's first one.
    """
    chosen, history = "every", "frozen"
    if isinstance(split, GlobalTime):
        chosen, history = split.targets, split.history
    elif isinstance(split, UserHoldout):
        chosen, history = "last", "advancing"
    if chosen == "first":
        ends = np.minimum(ends, starts + 1)
    firsts = np.maximum(starts, ends - 1) if chosen == "last" else starts
    users = np.repeat(np.arange(len(starts)), ends - firsts)
    targets = span_indices(firsts, ends)
    history_ends = starts[users]
    if history == "advancing":
        first = _begins_a_time(timestamps, offsets)
        history_ends = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))[targets]
    return users, targets, history_ends


def _begins_a_time(timestamps: Int64s, offsets: Int64s) -> Bools:
    """Return which interactions are the user's first at their time [N]."""
    first = np.ones(len(timestamps), dtype=np.bool_)
    first[1:] = timestamps[1:] != timestamps[:-1]
    first[offsets[:-1]] = True
    return first


@dataclass(frozen=True, slots=True)
class Holdout:
    """The Q targets [Q] of one part of the split, each with the history it is predicted from.

    Targets of a user that have the same history share it.
    """

    users: Int64s
    """The user's row in the dataset, ascending."""
    targets: Int32s
    """Item tokens, each at least 1."""
    history_rows: Int64s
    """The row in ``histories`` of each target's history, ascending."""
    histories: Histories
    """The H <= Q histories before the part or the targets, without items outside the catalogue."""
    dropped: int
    """Number of targets outside the catalogue, which are not among the Q."""
    without_history: int = 0
    """Number of other targets without a history, likewise."""

    @property
    def owners(self) -> Int64s:
        """Shape [H]: the row of each history's user in the dataset."""
        return self.users[np.unique(self.history_rows, return_index=True)[1]]

    def after(self, rows: Int64s) -> tuple[Int64s, Holdout]:
        """Return the targets after some histories, ascending rows: their places, and a holdout."""
        firsts = np.searchsorted(self.history_rows, rows)
        ends = np.searchsorted(self.history_rows, rows, side="right")
        chosen = span_indices(firsts, ends)
        return chosen, replace(
            self,
            users=self.users[chosen],
            targets=self.targets[chosen],
            history_rows=np.repeat(np.arange(len(rows)), ends - firsts),
            histories=self.histories.take(rows),
        )

    def sample(self, count: int, seed: int) -> Holdout:
        """Return the targets of a random sample of at most ``count`` histories.

        The larger of two samples of one seed contains the smaller: both can be compared on it.
        """
        if len(self.histories) <= count:
            return self
        rng = np.random.default_rng(seed)
        return self.after(np.sort(rng.permutation(len(self.histories))[:count]))[1]
