"""A split is three numbers per user: where training, validation and test end.

Cut points [U, 3] count each user's interactions, oldest first: training is ``[0, cut 0)``,
validation ``[cut 0, cut 1)`` and test ``[cut 1, cut 2)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recsys.config import (
    GlobalTime,
    LeaveLastBasketOut,
    LeaveLastOut,
    Split,
    UserHoldout,
    time_value,
)
from recsys.errors import InputError


def cut_points(
    split: Split, timestamps: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Compute the cut points of a split.

    Args:
        split: of any kind but a backtest.
        timestamps: shape [N]: the times of all interactions, ascending for each user.
        offsets: shape [U + 1]: where each user's interactions start; the last entry is N. Every
            user has at least one.

    Returns:
        Cut points [U, 3].

    Raises:
        InputError: the split leaves no training or no test interactions, or it is a backtest.
    """
    lengths = np.diff(offsets)
    match split:
        case LeaveLastOut():
            return leave_last_out(lengths, split.targets)
        case LeaveLastBasketOut():
            return leave_last_basket_out(timestamps, offsets)
        case GlobalTime():
            return global_time(timestamps, offsets, _cut_times(split, timestamps))
        case UserHoldout():
            fractions = split.valid_fraction, split.test_fraction
            return user_holdout(lengths, *fractions, np.random.default_rng(split.seed))
    raise InputError(
        "data.split: a backtest has one dataset per fold and cannot be prepared as one: see "
        "recsys backtest"
    )


def leave_last_out(lengths: NDArray[np.int64], targets: int = 1) -> NDArray[np.int32]:
    """Hold out each user's last interactions for test, and as many before them for validation.

    At least one interaction is always left for training: a user with too few for both parts has
    only test targets, and a user with too few for these has none.

    Args:
        lengths: shape [U]: interactions per user, each at least 1.
        targets: number of targets in each part, at least 1.

    Returns:
        Cut points [U, 3].

    >>> leave_last_out(np.array([1, 2, 3, 10]))
    array([[ 1,  1,  1],
           [ 1,  1,  2],
           [ 1,  2,  3],
           [ 8,  9, 10]], dtype=int32)
    >>> leave_last_out(np.array([2, 3, 4, 5]), targets=2)
    array([[2, 2, 2],
           [1, 1, 3],
           [2, 2, 4],
           [1, 3, 5]], dtype=int32)
    """
    test = np.where(lengths > targets, lengths - targets, lengths)
    valid = np.where(lengths > 2 * targets, test - targets, test)
    return np.stack([valid, test, lengths], axis=1).astype(np.int32)


def leave_last_basket_out(
    timestamps: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Hold out each user's last basket for test, and the one before it for validation.

    A basket is all interactions of a user at one time. At least one is always left for training: a
    user with two baskets has none for validation, and a user with one has none for test.

    Args:
        timestamps: shape [N]: the times of all interactions, ascending for each user.
        offsets: shape [U + 1]: where each user's interactions start; the last entry is N. Every
            user has at least one.

    Returns:
        Cut points [U, 3].

    >>> leave_last_basket_out(np.array([1, 1, 5, 9, 9, 3, 4, 4]), np.array([0, 5, 8]))
    array([[2, 3, 5],
           [1, 1, 3]], dtype=int32)
    """
    first = np.ones(len(timestamps), dtype=np.bool_)  # the first interaction of its basket
    first[1:] = timestamps[1:] != timestamps[:-1]
    first[offsets[:-1]] = True
    edges = np.append(np.flatnonzero(first), len(timestamps))
    before = np.searchsorted(edges, offsets)  # baskets of all earlier users
    ends: NDArray[np.int64] = edges[before[:-1, None] + leave_last_out(np.diff(before))]
    return (ends - offsets[:-1, None]).astype(np.int32)


def global_time(
    timestamps: NDArray[np.int64], offsets: NDArray[np.int64], cuts: Sequence[float]
) -> NDArray[np.int32]:
    """Start validation for all users at the first of two times, and test at the second.

    Args:
        timestamps: shape [N]: the times of all interactions, ascending for each user.
        offsets: shape [U + 1]: where each user's interactions start; the last entry is N.
        cuts: the two times.

    Returns:
        Cut points [U, 3].

    >>> global_time(np.array([1, 4, 5, 9, 5, 8]), np.array([0, 4, 6]), (5, 8))
    array([[2, 3, 4],
           [0, 1, 2]], dtype=int32)
    """
    earlier = [np.concatenate([[0], np.cumsum(timestamps < cut)]) for cut in cuts]
    points = [np.diff(count[offsets]) for count in earlier]
    return np.stack([*points, np.diff(offsets)], axis=1).astype(np.int32)


def cut_time(times: NDArray[np.int64], rows: int) -> int:
    """Return the cut with the last ``rows`` interactions, and those tied with them, after it.

    Args:
        times: shape [N], ascending.
        rows: 1 to N.

    >>> cut_time(np.array([1, 4, 4, 9]), rows=2)
    4
    """
    return int(times[len(times) - rows])


def _cut_times(split: GlobalTime, timestamps: NDArray[np.int64]) -> tuple[float, float]:
    """Return the times at which validation and test begin."""
    times = np.sort(timestamps)
    if split.test_from is not None:
        test = time_value(split.test_from)
    else:
        test = cut_time(times, max(1, round(split.test_fraction * len(times))))
    held_out = len(times) - int(np.searchsorted(times, test))
    if split.valid_from is not None:
        valid = time_value(split.valid_from)
    else:
        rows = held_out + max(1, round(split.valid_fraction * len(times)))
        valid = cut_time(times, min(rows, len(times)))
    if held_out == 0 or not times[0] < valid <= test:
        raise InputError(
            f"data.split: {split} begins validation at {valid:.15g} and test at {test:.15g}, and "
            f"leaves no training or no test interactions: times run from {times[0]} to "
            f"{times[-1]}"
        )
    return valid, test


def user_holdout(
    lengths: NDArray[np.int64],
    valid_fraction: float,
    test_fraction: float,
    generator: np.random.Generator,
) -> NDArray[np.int32]:
    """Assign each user, with all interactions, to training, validation or test.

    Args:
        lengths: shape [U]: interactions per user.
        valid_fraction: fraction of the users for validation, at least one user.
        test_fraction: fraction of the users for test, at least one user.
        generator: draws the users.

    Returns:
        Cut points [U, 3] of a user with n interactions: (n, n, n) in training, (0, n, n) in
        validation, (0, 0, n) in test.

    Raises:
        InputError: no user is left for training.
    """
    fractions = (valid_fraction, test_fraction)
    valid, test = (max(1, round(fraction * len(lengths))) for fraction in fractions)
    if valid + test >= len(lengths):
        raise InputError(
            f"data.split: of {len(lengths)} users {valid} are for validation and {test} for test: "
            "none is left for training"
        )
    drawn = generator.permutation(len(lengths))
    cuts = np.repeat(lengths[:, None], 3, axis=1)
    cuts[drawn[: valid + test], 0] = 0
    cuts[drawn[:test], 1] = 0
    return cuts.astype(np.int32)
