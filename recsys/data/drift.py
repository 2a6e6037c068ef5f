"""How an appended log differs from the dataset before it."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from recsys.data.appended import Drift


def measure_drift(before: pl.DataFrame, added: pl.DataFrame, seed: int = 0) -> Drift:
    """Compare the interactions that an append adds with those that were there.

    Args:
        before: user_id, item_id and timestamp of the interactions, at least one.
        added: the same of those added.
        seed: of the sample that shows the shift by chance.

    >>> before = pl.DataFrame({"user_id": [1, 1], "item_id": [7, 8], "timestamp": [3, 5]})
    >>> added = pl.DataFrame({"user_id": [1, 2], "item_id": [7, 9], "timestamp": [4, 9]})
    >>> drift = measure_drift(before, added)
    >>> drift.new_users, drift.new_items, drift.late, drift.since_last
    (1, 1, 1, 4)
    """
    rows = len(added)
    users, new_users = _distinct_and_new(before["user_id"], added["user_id"])
    items, new_items = _distinct_and_new(before["item_id"], added["item_id"])
    newest = int(before["timestamp"].to_numpy().max())
    since_last = int(added["timestamp"].to_numpy().max()) - newest if rows else None
    late = int((added["timestamp"] < newest).sum())
    shift, by_chance = popularity_shift(before["item_id"], added["item_id"], seed)
    return Drift(
        interactions=rows,
        interaction_share=rows / (len(before) + rows),
        new_users=new_users,
        new_user_share=_share(new_users, users),
        new_items=new_items,
        new_item_share=_share(new_items, items),
        late=late,
        late_share=_share(late, rows),
        since_last=since_last,
        popularity_shift=shift,
        shift_by_chance=by_chance,
    )


def popularity_shift(
    before: pl.Series, added: pl.Series, seed: int = 0
) -> tuple[float | None, float | None]:
    """Return the Jensen-Shannon distance between two lists of items, and that by chance alone.

    The second number is the distance of as many items as were added, drawn from those before: few
    items are far from any distribution. Both are None if nothing was added. See Lin 1991,
    "Divergence measures based on the Shannon entropy".
    """
    if added.is_empty():
        return None, None
    old, new = (s.rename("item").to_frame().group_by("item").len() for s in (before, added))
    both = old.join(new, on="item", how="full", coalesce=True, suffix="_added").sort("item")
    counts = both.select(pl.exclude("item").fill_null(0).cast(pl.Float64)).to_numpy()
    shares = counts[:, 0] / counts[:, 0].sum()
    drawn = np.random.default_rng(seed).multinomial(len(added), shares)
    return _distance(shares, counts[:, 1]), _distance(shares, drawn.astype(np.float64))


def _distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    with np.errstate(invalid="ignore"):  # rounding can leave the root of a negative number
        found = float(jensenshannon(first, second, base=2))
    return 0.0 if np.isnan(found) else found


def _distinct_and_new(before: pl.Series, added: pl.Series) -> tuple[int, int]:
    """Return the number of distinct ids added, and how many of them were not there before."""
    ids = added.unique()
    return len(ids), int((~ids.is_in(before.unique().implode())).sum())


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0
