"""Feature encoders: the columns of a table of items, interactions or users as numbers.

An encoder learns categories, means and words once, from the rows of a dataset, and saves them, so
that later rows are encoded in the same way.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from recsys.config import Feature, VectorFeature
from recsys.data.features.columns import COLUMN_CLASSES
from recsys.data.features.feature_column import (
    KEYS,
    ColumnName,
    EncodedCells,
    Entity,
    FeatureColumn,
)
from recsys.data.features.table import Features, FeatureTable
from recsys.data.features.vectors import ItemVectors, VectorColumn
from recsys.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureEncoder:
    """Encode tables of items, interactions or users as `FeatureTable` and `Features`."""

    entity: Entity
    """The entity of the tables' rows."""
    features: tuple[Feature, ...]
    fitted: tuple[FeatureColumn[Any], ...]
    """The fitted column of each feature."""

    @classmethod
    def fit(
        cls, entity: Entity, features: Sequence[Feature], table: pl.DataFrame
    ) -> FeatureEncoder:
        """Learn categories, means and words.

        Args:
            entity: the entity of the table's rows.
            features: at least one.
            table: [R rows]; identified by item_id, user_id or both.

        Raises:
            InputError: a column is missing, has no value, the same value in all rows, or values
                that are not of its kind.
        """
        fitted = tuple(
            COLUMN_CLASSES[type(feature)].fit(feature, entity, table) for feature in features
        )
        return cls(entity, tuple(features), fitted)

    @property
    def num_categories(self) -> int:
        """Number of categories of all columns together."""
        return sum(column.width.categories for column in self.fitted)

    @property
    def num_numbers(self) -> int:
        """Numbers per row of all columns together, K, without vectors."""
        return sum(column.width.numbers for _, column in self._without_vectors)

    @property
    def vector_dims(self) -> dict[str, int]:
        """The length of the vectors, by column."""
        return {feature.column: column.dim for feature, column in self._vectors}

    @property
    def _vectors(self) -> list[tuple[VectorFeature, VectorColumn]]:
        both = zip(self.features, self.fitted, strict=True)
        return [
            (feature, column)
            for feature, column in both
            if isinstance(feature, VectorFeature) and isinstance(column, VectorColumn)
        ]

    @property
    def _without_vectors(self) -> list[tuple[Feature, FeatureColumn[Any]]]:
        both = zip(self.features, self.fitted, strict=True)
        return [pair for pair in both if not isinstance(pair[0], VectorFeature)]

    @property
    def columns(self) -> list[str]:
        """The names of the columns, each once."""
        return list(dict.fromkeys(feature.column for feature in self.features))

    def encode(self, table: pl.DataFrame, first: int = 1) -> FeatureTable:
        """Encode the rows of a table [R rows]; values that `fit` did not see count as missing.

        Vectors are left out: see `vectors`.

        Args:
            table: as in `fit`.
            first: the number of the first category.

        Raises:
            InputError: a column is missing, or has values that are not of its kind.
        """
        rows, categories, shares = (
            [np.empty(0, dtype)] for dtype in (np.int64, np.int64, np.float32)
        )
        numbers = [np.zeros((len(table), 0), dtype=np.float32)]
        for feature, column in self._without_vectors:
            cells = column.read(feature, self.entity, table)
            found = column.encode(cells)
            if column.width.categories:
                self._warn_of_unknown(feature, cells, found)
            rows.append(found.rows + 1)
            categories.append(first + found.categories)
            shares.append((1 / np.bincount(found.rows)[found.rows]).astype(np.float32))
            numbers.append(found.numbers.astype(np.float32, copy=False))
            first += column.width.categories
        bags = _padded(
            len(table) + 1,
            np.concatenate(rows),
            np.concatenate(categories),
            np.concatenate(shares),
        )
        return FeatureTable(*bags, np.pad(np.hstack(numbers), [(1, 0), (0, 0)]))

    def _warn_of_unknown(self, feature: Feature, cells: pl.Series, found: EncodedCells) -> None:
        """Warn if most cells of a column of categories have no value that `fit` saw."""
        unknown = cells.is_not_null().to_numpy().copy()
        present = unknown.sum()
        unknown[found.rows] = False
        if 2 * unknown.sum() > present:
            logger.warning(
                "%s: %d of %d values were never seen in training and count as missing, such as %s",
                *(ColumnName(self.entity, feature), unknown.sum(), present),
                ", ".join(map(repr, cells[int(unknown.argmax())])),
            )

    def vectors(self, table: pl.DataFrame) -> ItemVectors:
        """Return the vectors of a table [R rows]; none without features of this kind.

        Raises:
            InputError: a column is missing, or has other vectors than the fitted ones.
        """
        return {f.column: column.vectors(f, self.entity, table) for f, column in self._vectors}

    def read(self, table: pl.DataFrame, first: int = 1) -> Features:
        """Encode the rows of a table [N rows], equal rows once; for arguments see `encode`.

        Raises:
            InputError: as `encode`.
        """
        if not set(self.columns) <= set(table.columns):
            self.encode(table)  # raises an error that names the missing column
        equal = table.with_row_index("__row").group_by(self.columns, maintain_order=True)
        different = equal.agg(pl.first(*KEYS[self.entity]), "__row")
        rows = np.empty(len(table), dtype=np.int64)
        counts = different["__row"].list.len().to_numpy()
        rows[different["__row"].explode().to_numpy()] = np.repeat(
            np.arange(1, len(different) + 1), counts
        )
        return Features(self.encode(different.drop("__row"), first), rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file: the arrays, and all other facts as its metadata."""
        tensors: dict[str, NDArray[Any]] = {}
        facts: list[dict[str, Any]] = []
        for number, column in enumerate(self.fitted):
            fields = asdict(column)
            arrays = {name for name, value in fields.items() if isinstance(value, np.ndarray)}
            tensors |= {f"{number}.{name}": np.ascontiguousarray(fields[name]) for name in arrays}
            facts.append({name: fields[name] for name in fields if name not in arrays})
        save_file(tensors, path, {"encoders": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], entity: Entity, features: Sequence[Feature]
    ) -> FeatureEncoder:
        """Read a file that `save` wrote for an encoder of the same features.

        Raises:
            InputError: the file cannot be read, or belongs to other features.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads(file.metadata()["encoders"])
                for name in file.keys():  # noqa: SIM118
                    number, field = name.split(".")
                    facts[int(number)][field] = file.get_tensor(name)
            fitted = tuple(
                COLUMN_CLASSES[type(feature)](**fields)
                for feature, fields in zip(features, facts, strict=True)
            )
            return cls(entity, tuple(features), fitted)
        except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as {entity} features: {error}") from error


def _padded(
    num_rows: int,
    rows: NDArray[np.int64],
    categories: NDArray[np.int64],
    shares: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return categories and shares by row, padded to the longest row, which is at least 1."""
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=num_rows)
    present = np.arange(counts.max(initial=1)) < counts[:, None]
    bags = np.zeros(present.shape, np.int64), np.zeros(present.shape, np.float32)
    bags[0][present], bags[1][present] = categories[order], shares[order]
    return bags
