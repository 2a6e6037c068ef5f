"""The same figures by kinds of targets and users."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.tables.rank import RankTable

_HISTORY = {1: "1-4", 5: "5-9", 10: "10-19", 20: "20-49", 50: "50-99", 100: "100+"}
"""History lengths: where a bucket starts, and its name."""
_COLD = 5
"""Users with fewer items in their history are cold."""
_QUARTERS = ("shortest quarter", "second quarter", "third quarter", "longest quarter")

SEGMENTS = {
    "history": "length of the history",
    "customer": "cold (fewer than 5 items in the history) or warm",
    "purchase": "repeat (the item is in the history) or new",
    "popularity_decile": "tenth of the catalogue that the target is of, 1 the most popular",
    "gap": "time from the last item of the history to the target, in quarters of the targets",
}
"""The columns that `with_segments` adds, in words."""


def with_segments(table: RankTable, dataset: PreparedDataset) -> RankTable:
    """The table with the columns of `SEGMENTS`, so that comparing by segment needs no data.

    The gap is null where all are the same (times that are mere sequence numbers). Popularity
    counts the interactions before the part of the split; items of one popularity are ordered by
    item token.

    Args:
        table: the targets of a part of the split, in the order of the holdout.
        dataset: what it was made of.

    Raises:
        ValueError: the table has other rows than the holdout.
    """
    holdout = dataset.holdout(table.protocol.part)
    if table.frame["target"].to_list() != holdout.targets.tolist():
        raise ValueError(f"the table has other targets than the {table.protocol.part} part")
    histories, rows = holdout.histories, holdout.history_rows
    lengths = histories.lengths[rows]
    # One number per history and item makes questions of sets questions of numbers.
    width = dataset.num_items + 1
    held = np.unique(histories.users * width + histories.items)
    repeated = np.isin(rows * width + holdout.targets, held)
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


def by_segment(table: RankTable, column: str, metrics: Sequence[str]) -> pl.DataFrame:
    """The metrics of the targets of each segment, averaged over the users that have any.

    Args:
        table: with segment columns.
        column: one of them.
        metrics: names that `metric_values` knows.

    Returns:
        One row per segment, in order: the column, users, targets, and for each metric ``M``:
        ``M, M_low, M_high``, the 95% interval over users.

    Raises:
        InputError: there is no such column, or no such metric.
    """
    if column not in table.frame.columns:
        raise InputError(
            f"segment {column!r}: must be a column of the rank table: "
            f"{', '.join(table.frame.columns[3:])}"
        )
    rows: list[dict[str, object]] = []
    for (segment,), frame in table.frame.sort(column, nulls_last=True).group_by(
        [column], maintain_order=True
    ):
        row = {"segment": segment, "users": frame["user"].n_unique(), "targets": len(frame)}
        for name, interval in RankTable(frame, table.protocol).summary(metrics).items():
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None).rename({"segment": column})


def _gaps(dataset: PreparedDataset, holdout: Holdout) -> NDArray[np.int64]:
    """From the last known item before each target to the target [Q], in the log's unit of time."""
    known = np.flatnonzero(dataset.items != PAD)
    first = np.searchsorted(known, dataset.offsets[:-1])[holdout.users]  # known item of the user
    last = known[first + holdout.histories.lengths[holdout.history_rows] - 1]
    gaps: NDArray[np.int64] = dataset.timestamps[holdout.positions] - dataset.timestamps[last]
    return gaps


def _deciles(dataset: PreparedDataset, table: RankTable) -> NDArray[np.int8]:
    """By item token [I + 1]: 1 for the most popular tenth of the catalogue to 10; 0 for PAD."""
    bought = dataset.histories(table.protocol.part).items
    counts = np.bincount(bought, minlength=dataset.num_items + 1)[1:]
    deciles = np.zeros(dataset.num_items + 1, dtype=np.int8)
    best_first = np.argsort(-counts, kind="stable")
    deciles[1 + best_first] = 1 + np.arange(dataset.num_items) * 10 // dataset.num_items
    return deciles


def _quarters(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which quarter each value is of, 0 to 3; -1 for all where all are the same.

    Equal values are in the same quarter, so quarters differ in size.
    """
    if len(np.unique(values)) < 2:
        return np.full(len(values), -1)
    return np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values)


def _labels(numbers: NDArray[np.int64], labels: Sequence[str]) -> pl.Series:
    """The numbers as labels that keep their order; null for -1."""
    texts = [None if number < 0 else labels[number] for number in numbers.tolist()]
    return pl.Series(texts, dtype=pl.Enum(labels))
