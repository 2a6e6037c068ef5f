"""The split of an automatic run whose users have too few interactions for the usual one."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import GlobalTime, Split
from recsys.data.splits import cut_points
from recsys.errors import InputError
from recsys.reports.run_page import Choice

_FEW, _FEW_USERS, _LEAST_SHARE = 100, 0.1, 0.02
"""Targets below which chance decides between models; a small log may have a tenth of its users, and
a large one must have this share of them: those with the most interactions are unlike the others."""
_NEEDED = 4
"""Interactions of a user with two held out and a pair to learn from."""
_CLEARLY = 2
"""The split by date must have so many times as many targets."""
_TRAINED_ON = 0.5
"""And leave this share of the interactions for training."""


def choose_split(timestamps: NDArray[np.int64], offsets: NDArray[np.int64]) -> Split | None:
    """Return the split by date if the usual one, leaving the last items out, has too few users.

    That needs four interactions of a user; the customers of many shops have two. The split by date
    needs one before the date and one after it. Times must not be numbers that begin anew with
    every user, or that follow each other from user to user: a date would split few of them.

    Args:
        timestamps: of all interactions, ascending for each user [N].
        offsets: where each user's interactions start [U + 1].

    Returns:
        None if the usual split has enough users, or the other one is not clearly better.
    """
    users = len(offsets) - 1
    usual = _learnable(offsets)
    least = max(min(_FEW, _FEW_USERS * users), _LEAST_SHARE * users)
    if usual >= least or pl.Series(np.asarray(timestamps[offsets[:-1]])).n_unique() == 1:
        return None
    split = GlobalTime()
    try:
        first, second, last = cut_points(split, timestamps, offsets).T
    except InputError:
        return None
    valid = np.count_nonzero((first > 0) & (second > first))
    test = np.count_nonzero((second > 0) & (last > second))
    is_better = min(valid, test) >= max(least, _CLEARLY * usual)
    return split if is_better and first.sum() >= _TRAINED_ON * len(timestamps) else None


def explained(split: Split, offsets: NDArray[np.int64]) -> Choice:
    """Return the split that was chosen, with the reason."""
    reason = (
        f"{_learnable(offsets):,} of {len(offsets) - 1:,} users have {_NEEDED} interactions, which "
        "leaving two of each out needs: the latest interactions of all users are held out"
    )
    return Choice("data.split", split.kind, reason)


def _learnable(offsets: NDArray[np.int64]) -> int:
    return int(np.count_nonzero(np.diff(offsets) >= _NEEDED))
