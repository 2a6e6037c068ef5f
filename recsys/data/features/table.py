"""Features as numbers: a table of the different rows, and the row of each entity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """The features of R entities in rows 1 to R. Row 0 (PAD) has no features."""

    categories: NDArray[np.int64]
    """Shape [R + 1, M]: the categories of each row, padded with 0. They are numbered from 1, those
    of all columns together."""
    shares: NDArray[np.float32]
    """Shape [R + 1, M]: the weight of each category, padded with 0. Those of a column sum to 1."""
    numbers: NDArray[np.float32]
    """Shape [R + 1, K]: numbers and text vectors, 0 where they are missing."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The features of N interactions or users, as rows of a table without duplicates.

    >>> stars = FeatureTable(np.zeros((3, 0), int), np.zeros((3, 0)), np.array([[0], [-1], [1]]))
    >>> rated = Features(stars, np.array([2, 2, 1]))
    >>> stars.numbers[rated[1:].rows].tolist()
    [[1], [-1]]
    """

    table: FeatureTable
    rows: NDArray[np.int64]
    """Shape [N]: rows of the table, 0 if nothing is known."""

    def __getitem__(self, index: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Features:
        """Return the features of a subset."""
        return Features(self.table, self.rows[index])


def join_features(
    parts: list[tuple[FeatureTable, NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]] | None:
    """Join the categories, shares and numbers of rows [B, L] of several tables on the last axis.

    Return None if there are no tables.
    """
    if not parts:
        return None
    return (
        np.concatenate([table.categories[rows] for table, rows in parts], axis=-1),
        np.concatenate([table.shares[rows] for table, rows in parts], axis=-1),
        np.concatenate([table.numbers[rows] for table, rows in parts], axis=-1),
    )
