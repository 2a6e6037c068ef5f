"""The best items after every history with targets: the lists that a model recommends."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.holdout import Holdout
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.metrics.beyond_accuracy import TOP_K_METRICS
from recsys.evaluation.metrics.names import split_name, usage
from recsys.evaluation.tables.next_list import NextListProtocol
from recsys.evaluation.tables.parquet import load_table, save_table
from recsys.inference.scorer import Seen

_NOUN = "top-k table"
_SCHEMA = {
    "user": pl.Int64(),
    "history_length": pl.Int32(),
    "items": pl.List(pl.Int32),
    "scores": pl.List(pl.Float32),
}
_MOST = 100
"""The length of the longest lists."""


@dataclass(frozen=True, slots=True)
class TopKTable:
    """One row per list: the best items of the catalogue after one history of one user."""

    frame: pl.DataFrame
    """The columns user (row of the user in the dataset), history_length, items (k item tokens, best
    first; PAD for an empty position) and their scores."""
    protocol: NextListProtocol

    @property
    def items(self) -> NDArray[np.int32]:
        """Item tokens [N, k], best first."""
        items: NDArray[np.int32]
        items = self.frame["items"].list.to_array(self.protocol.length).to_numpy()
        return items

    def value(self, metric: str) -> float:
        """Return one metric of all lists together, e.g. ``coverage_at_10``.

        Raises:
            InputError: there is no such metric, or the lists are shorter than its cut-off.
        """
        kind, k = split_name(metric)
        if kind not in TOP_K_METRICS or k is None:
            raise InputError(f"metric {metric!r}: must be {usage(TOP_K_METRICS)}")
        if k > self.protocol.length:
            raise InputError(f"metric {metric!r}: the lists have {self.protocol.length} items")
        return TOP_K_METRICS[kind](self.items[:, :k], self.protocol.num_items)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file atomically; see `save_table`."""
        save_table(path, _NOUN, self.frame, self.protocol)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TopKTable:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is not a top-k table.
        """
        return cls(*load_table(path, _NOUN, _SCHEMA, NextListProtocol))


def top_k_length(wanted: int, num_items: int) -> int:
    """Return the length of a list: at most 100, and at most the size of the catalogue."""
    return min(wanted, _MOST, num_items)


def top_k_table(
    items: NDArray[np.int32],
    scores: NDArray[np.float32],
    holdout: Holdout,
    part: Part,
    num_items: int,
    seen: Seen,
) -> TopKTable:
    """Make the table of the best items [H, k] after each history, with their scores [H, k]."""
    _, first = np.unique(holdout.history_rows, return_index=True)
    frame = pl.DataFrame(
        {
            "user": holdout.users[first],
            "history_length": holdout.histories.lengths,
            "items": pl.Series(items),
            "scores": pl.Series(scores),
        },
        schema=_SCHEMA,
    )
    protocol = NextListProtocol(part, num_items, seen, items.shape[1], holdout.dropped)
    return TopKTable(frame, protocol)
