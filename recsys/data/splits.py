"""A split is three numbers per user: where training, validation and test end.

Cut points [U, 3] count each user's interactions, oldest first: training is ``[0, cut 0)``,
validation ``[cut 0, cut 1)`` and test ``[cut 1, cut 2)``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def leave_last_out(lengths: NDArray[np.int64], targets: int = 1) -> NDArray[np.int32]:
    """The last interactions of each user are test targets, as many before them validation targets.

    At least one interaction is always left to train on: of a user with too few for both parts only
    the test targets are held out, and nothing of a user with too few for those.

    Args:
        lengths: interactions per user [U], each at least 1.
        targets: how many in each part, at least 1.

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
    """The last basket of each user is held out for test, the one before it for validation.

    A basket is all that a user bought at one time. At least one is always left to train on: of two
    baskets none is for validation, and a single one is not held out.

    Args:
        timestamps: of all interactions, those of each user ascending [N].
        offsets: where each user's interactions start and the last one's end [U + 1]; every user
            has at least one.

    Returns:
        Cut points [U, 3].

    >>> leave_last_basket_out(np.array([1, 1, 5, 9, 9, 3, 4, 4]), np.array([0, 5, 8]))
    array([[2, 3, 5],
           [1, 1, 3]], dtype=int32)
    """
    first = np.ones(len(timestamps), dtype=np.bool_)  # of its basket
    first[1:] = timestamps[1:] != timestamps[:-1]
    first[offsets[:-1]] = True
    edges = np.append(np.flatnonzero(first), len(timestamps))
    before = np.searchsorted(edges, offsets)  # baskets of all earlier users
    ends: NDArray[np.int64] = edges[before[:-1, None] + leave_last_out(np.diff(before))]
    return (ends - offsets[:-1, None]).astype(np.int32)
