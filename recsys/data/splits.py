"""A split is three numbers per user: where training, validation and test end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def leave_last_out(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """The last interaction of each user is the test target, the one before the validation target.

    A user of two interactions has no validation target, a user of one neither: at least one
    interaction is always left to train on.

    Args:
        lengths: interactions per user [U], each at least 1.

    Returns:
        Cut points [U, 3]: in each user's interactions, oldest first, training is ``[0, cut 0)``,
        validation ``[cut 0, cut 1)`` and test ``[cut 1, cut 2)``.

    >>> leave_last_out(np.array([1, 2, 3, 10]))
    array([[ 1,  1,  1],
           [ 1,  1,  2],
           [ 1,  2,  3],
           [ 8,  9, 10]], dtype=int32)
    """
    cuts = np.stack([lengths - 2, lengths - 1, lengths], axis=1)
    return np.maximum(cuts, 1).astype(np.int32)
