"""Features as numbers: a table of what there is, and which of its rows things have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """The features of R things: row 0 (PAD) has none, the others are rows 1 to R."""

    categories: NDArray[np.int64]
    """Categories of each [R + 1, M], from 1, those of all columns numbered together; 0 fills up."""
    shares: NDArray[np.float32]
    """How much each of them counts [R + 1, M]: those of one column sum to 1. 0 where 0 fills up."""
    numbers: NDArray[np.float32]
    """Numbers and directions of text [R + 1, K]; 0 where they are missing."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The features of N interactions, or of N users: rows of a table of the different ones.

    >>> stars = FeatureTable(np.zeros((3, 0), int), np.zeros((3, 0)), np.array([[0], [-1], [1]]))
    >>> rated = Features(stars, np.array([2, 2, 1]))
    >>> stars.numbers[rated[1:].rows].tolist()
    [[1], [-1]]
    """

    table: FeatureTable
    rows: NDArray[np.int64]
    """Of the table [N]; 0: nothing is known."""

    def __getitem__(self, some: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Features:
        """Of some of the things."""
        return Features(self.table, self.rows[some])


def side_by_side(
    parts: list[tuple[FeatureTable, NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]] | None:
    """Categories, shares and numbers of rows [B, L] of several tables, joined along the last axis.

    None if there are no tables.
    """
    if not parts:
        return None
    return (
        np.concatenate([table.categories[rows] for table, rows in parts], axis=-1),
        np.concatenate([table.shares[rows] for table, rows in parts], axis=-1),
        np.concatenate([table.numbers[rows] for table, rows in parts], axis=-1),
    )
