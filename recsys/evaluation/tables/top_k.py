"""The best items for every history that is followed by targets: what a model would recommend."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.holdout import Holdout
from recsys.data.prepared import Part
from recsys.evaluation.tables.next_list import NextListProtocol
from recsys.evaluation.tables.parquet import load_table, save_table
from recsys.inference.ranking import Seen

_NOUN = "top-k table"
_SCHEMA = {
    "user": pl.Int64(),
    "history_length": pl.Int32(),
    "items": pl.List(pl.Int32),
    "scores": pl.List(pl.Float32),
}
_MOST = 100
"""Longest lists that are kept."""


@dataclass(frozen=True, slots=True)
class TopKTable:
    """One row per list: the best items of the catalogue after one history of one user."""

    frame: pl.DataFrame
    """user (row of the user in the dataset), history_length (items before), items (k item tokens,
    best first; PAD: nothing in this place) and their scores."""
    protocol: NextListProtocol

    @property
    def items(self) -> NDArray[np.int32]:
        """Item tokens [N, k], best first."""
        items: NDArray[np.int32]
        items = self.frame["items"].list.to_array(self.protocol.length).to_numpy()
        return items

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file, whole or not at all; see `save_table`."""
        save_table(path, _NOUN, self.frame, self.protocol)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TopKTable:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is no top-k table.
        """
        return cls(*load_table(path, _NOUN, _SCHEMA, NextListProtocol))


def list_length(wanted: int, num_items: int) -> int:
    """How many places a list has: at most 100, and at most as many as the catalogue has items."""
    return min(wanted, _MOST, num_items)


def top_k_table(
    items: NDArray[np.int32],
    scores: NDArray[np.float32],
    holdout: Holdout,
    part: Part,
    num_items: int,
    seen: Seen,
) -> TopKTable:
    """The table of the best items [H, k] after each history of a holdout, and their scores."""
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
