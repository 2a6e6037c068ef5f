"""Segments of targets: by history, customer, purchase, popularity and gap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import Holdout
from recsys.evaluation.tables import RankTable

_HISTORY = {1: "1-4", 5: "5-9", 10: "10-19", 20: "20-49", 50: "50-99", 100: "100+"}
"""The name of each bucket of history lengths, by the length it starts at."""
_COLD = 5
"""Users with fewer items in their history are cold."""
_QUARTERS = ("shortest quarter", "second quarter", "third quarter", "longest quarter")

SEGMENTS = {
    "history": "length of the history",
    "customer": "cold (fewer than 5 items in the history) or warm",
    "purchase": "repeat (the item is in the history) or new",
    "popularity_decile": "decile of the target's popularity, 1 the most popular",
    "gap": "time from the last item of the history to the target, in quarters of all targets",
}
"""The columns that `with_segments` adds, with their meanings."""


def with_segments(table: RankTable, dataset: PreparedDataset, holdout: Holdout) -> RankTable:
    """Return the table with the columns of `SEGMENTS`: comparing by segment then needs no data.

    The rows are the targets of the holdout. The gap is null if all gaps are equal (times that are
    only sequence numbers). Popularity counts the interactions before the part of the split; items
    of equal popularity are ordered by item token.
    """
    histories, rows, num_items = holdout.histories, holdout.history_rows, dataset.num_items
    lengths = histories.lengths[rows]
    seen = np.unique(histories.users * (num_items + 1) + histories.items)
    repeated = np.isin(rows * (num_items + 1) + holdout.targets, seen)

    bought = dataset.histories(table.protocol.part).items
    most_popular = np.argsort(-np.bincount(bought, minlength=num_items + 1)[1:], kind="stable")
    deciles = np.zeros(num_items + 1, dtype=np.int8)
    deciles[1 + most_popular] = 1 + np.arange(num_items) * 10 // num_items

    known = np.flatnonzero(dataset.items != PAD)
    last = known[np.searchsorted(known, dataset.offsets[:-1])[holdout.users] + lengths - 1]
    gaps = dataset.timestamps[holdout.positions] - dataset.timestamps[last]
    # Equal gaps are in the same quarter, so quarters differ in size.
    quarters = np.full(len(gaps), -1)
    if len(np.unique(gaps)) > 1:
        quarters = np.searchsorted(np.quantile(gaps, [0.25, 0.5, 0.75]), gaps)

    history = np.searchsorted([*_HISTORY], lengths, side="right") - 1
    frame = table.frame.with_columns(
        history=_labels(history, [*_HISTORY.values()]),
        customer=_labels(lengths >= _COLD, ["cold", "warm"]),
        purchase=_labels(repeated, ["new", "repeat"]),
        popularity_decile=pl.Series(deciles[holdout.targets]),
        gap=_labels(quarters, _QUARTERS),
    )
    return RankTable(frame, table.protocol)


def _labels(numbers: NDArray[np.int64 | np.bool_], labels: Sequence[str]) -> pl.Series:
    """Turn numbers into labels that keep their order; null for -1."""
    texts = [None if number < 0 else labels[number] for number in numbers.tolist()]
    return pl.Series(texts, dtype=pl.Enum(labels))
