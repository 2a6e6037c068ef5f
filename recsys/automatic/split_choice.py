"""The split of an automatic run whose users have too few interactions for the usual one."""

from __future__ import annotations

import numpy as np
import polars as pl

from recsys.config import GlobalTime, LeaveLastOut
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import cut_points
from recsys.errors import InputError
from recsys.report.run_page import Choice

_FEW, _FEW_USERS = 100, 0.1
"""Validation targets below which chance decides between models, and the share of the users below
which so few are not simply due to a small log."""


def choose_split(dataset: PreparedDataset) -> Choice | None:
    """Return the split by date if it has more validation targets than leaving the last items out.

    That needs three interactions of a user, and the customers of many shops have two. The split by
    date needs one interaction before the date and one after it, and times that are no sequence
    numbers: these have no more values than the longest history has interactions.

    Args:
        dataset: prepared with the usual split.

    Returns:
        The choice; None if the usual split leaves enough targets, or no other is better.
    """
    if dataset.config.split != LeaveLastOut():
        return None
    users, lengths = dataset.num_users, np.diff(dataset.offsets)
    enough = np.count_nonzero(lengths > 2)
    if enough >= min(_FEW, _FEW_USERS * users):
        return None
    if pl.Series(np.asarray(dataset.timestamps)).n_unique() <= lengths.max():
        return None
    try:
        cuts = cut_points(GlobalTime(), dataset.timestamps, dataset.offsets)
    except InputError:
        return None
    if np.count_nonzero((cuts[:, 0] > 0) & (cuts[:, 1] > cuts[:, 0])) <= enough:
        return None
    reason = (
        f"{enough:,} of {users:,} users have the three interactions that leaving the last two out "
        "needs: the latest interactions of all users are held out"
    )
    return Choice("data.split", GlobalTime().kind, reason)
