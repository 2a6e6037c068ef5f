"""Blocks of consecutive users, so that what is done with their interactions fits in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def user_blocks(offsets: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive users with at most ``size`` interactions, or of one user.

    Args:
        offsets: shape [U + 1]: where each user's interactions start.
        size: interactions.

    >>> list(user_blocks(np.array([0, 2, 3, 9, 10]), 3))
    [(0, 2), (2, 3), (3, 4)]
    """
    low, users = 0, len(offsets) - 1
    while low < users:
        fitting = int(np.searchsorted(offsets, offsets[low] + size, side="right")) - 1
        high = max(low + 1, fitting)
        yield low, high
        low = high
