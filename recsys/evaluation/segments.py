"""Segments of targets: by history, customer, purchase, popularity and gap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
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

    The gap is null if all gaps are equal (times that are only sequence numbers). Popularity counts
    the interactions before the part of the split; items of equal popularity are ordered by item
    token.

    Args:
        table: the ranks of the targets, in the order of the holdout.
        dataset: the dataset of the holdout.
        holdout: the targets.

    Raises:
        ValueError: the rows of the table are not the targets of the holdout.
    """
    if table.frame["target"].to_list() != holdout.targets.tolist():
        raise ValueError(f"the table has other targets than the {table.protocol.part} part")
    histories, rows = holdout.histories, holdout.history_rows
    lengths = histories.lengths[rows]
    # One number per history and item turns comparisons of sets into comparisons of numbers.
    width = dataset.num_items + 1
    seen = np.unique(histories.users * width + histories.items)
    repeated = np.isin(rows * width + holdout.targets, seen)
    gaps = _gaps(dataset, holdout)
    starts = np.fromiter(_HISTORY, dtype=np.int64)
    history = np.searchsorted(starts, lengths, side="right") - 1
    frame = table.frame.with_columns(
        history=_labels(history, [*_HISTORY.values()]),
        customer=_labels((lengths >= _COLD).astype(np.int64), ["cold", "warm"]),
        purchase=_labels(repeated.astype(np.int64), ["new", "repeat"]),
        popularity_decile=pl.Series(_deciles(dataset, table)[holdout.targets]),
        gap=_labels(_quarters(gaps), _QUARTERS),
    )
    return RankTable(frame, table.protocol)


def _gaps(dataset: PreparedDataset, holdout: Holdout) -> NDArray[np.int64]:
    """Return the time from the last history item to each target [Q], in the unit of the log."""
    known = np.flatnonzero(dataset.items != PAD)
    first = np.searchsorted(known, dataset.offsets[:-1])[holdout.users]  # known item of the user
    last = known[first + holdout.histories.lengths[holdout.history_rows] - 1]
    gaps: NDArray[np.int64] = dataset.timestamps[holdout.positions] - dataset.timestamps[last]
    return gaps


def _deciles(dataset: PreparedDataset, table: RankTable) -> NDArray[np.int8]:
    """Return the popularity decile of each item token [I + 1], 1 the most popular; 0 for PAD."""
    bought = dataset.histories(table.protocol.part).items
    counts = np.bincount(bought, minlength=dataset.num_items + 1)[1:]
    deciles = np.zeros(dataset.num_items + 1, dtype=np.int8)
    best_first = np.argsort(-counts, kind="stable")
    deciles[1 + best_first] = 1 + np.arange(dataset.num_items) * 10 // dataset.num_items
    return deciles


def _quarters(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the quarter of each value, 0 to 3; -1 for all if all values are equal.

    Equal values are in the same quarter, so quarters differ in size.
    """
    if len(np.unique(values)) < 2:
        return np.full(len(values), -1)
    return np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values)


def _labels(numbers: NDArray[np.int64], labels: Sequence[str]) -> pl.Series:
    """Turn numbers into labels that keep their order; null for -1."""
    texts = [None if number < 0 else labels[number] for number in numbers.tolist()]
    return pl.Series(texts, dtype=pl.Enum(labels))
