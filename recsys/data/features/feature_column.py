"""A column of features: the protocol of its kinds, and the checks that they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import Feature
from recsys.errors import InputError, did_you_mean

Entity = Literal["item", "interaction", "user"]
"""The entities that have features."""

KEYS: dict[Entity, list[str]] = {
    "item": ["item_id"],
    "interaction": ["user_id", "item_id"],
    "user": ["user_id"],
}
"""The columns that identify the rows of an entity's table. They are not features."""

_NO_COLUMNS: dict[Entity, str] = {
    "item": "in the item table, which has no features",
    "interaction": "in the log: no columns of it were kept",
    "user": "in the user table, which has no features",
}

FeatureT_contra = TypeVar("FeatureT_contra", bound=Feature, contravariant=True)


class Width(NamedTuple):
    """The size of an encoded column."""

    categories: int
    """Number of different categories."""
    numbers: int
    """Numbers per row."""


class EncodedCells(NamedTuple):
    """The cells of R rows as categories and numbers."""

    rows: NDArray[np.int64]
    """Shape [N], ascending: the row of each category."""
    categories: NDArray[np.int64]
    """Shape [N]: categories, numbered from 0."""
    numbers: NDArray[np.float32] | NDArray[np.float16]
    """Shape [R, Width.numbers]; vectors are float16."""


class FeatureColumn(Protocol[FeatureT_contra]):
    """One column of features: a dataclass of the facts learned when it was fitted.

    Each kind of feature has a config section, a class with these methods, and an entry in
    `recsys.data.features.columns.COLUMN_CLASSES`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init__(self, **facts: Any) -> None:
        """Restore a column from its facts: arrays, and what JSON can hold."""

    @classmethod
    def fit(cls, feature: FeatureT_contra, entity: Entity, table: pl.DataFrame) -> Self:
        """Learn the column's values from a table [R rows].

        Raises:
            InputError: as `read`, or the column has no value, or only one.
        """

    @staticmethod
    def read(feature: FeatureT_contra, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """Return the column's cells in the type of this kind [R]; null if missing.

        Raises:
            InputError: the table has no such column, or a value is not of this kind.
        """

    def encode(self, cells: pl.Series) -> EncodedCells:
        """Encode cells from `read` [R]. Values that `fit` did not see count as missing."""

    @property
    def width(self) -> Width:
        """The number of categories and of numbers."""


@dataclass(frozen=True, slots=True)
class ColumnName:
    """The name of a feature in messages."""

    entity: Entity
    feature: Feature

    def __str__(self) -> str:
        return f"model.{self.entity}_features: {self.feature.kind} {self.feature.column!r}"


def column_type(feature: Feature, entity: Entity, table: pl.DataFrame) -> pl.DataType:
    """Return the type of a feature's column in a table.

    Raises:
        InputError: the table has no such column.
    """
    columns = [name for name in table.columns if name not in KEYS[entity]]
    if feature.column in columns:
        return table.schema[feature.column]
    place = f"among {', '.join(columns)}" if columns else _NO_COLUMNS[entity]
    hint = did_you_mean(feature.column, columns)
    if entity == "interaction" and not hint:
        hint = "; prepare the dataset with this column in data.keep"
    raise InputError(f"{ColumnName(entity, feature)}: no such column {place}{hint}")


def single_values(feature: Feature, entity: Entity, table: pl.DataFrame) -> pl.Expr:
    """Return a column of single values, not of lists.

    Raises:
        InputError: the table has no such column, or its cells are lists or structs.
    """
    dtype = column_type(feature, entity, table)
    if dtype.is_nested():
        raise InputError(
            f"{ColumnName(entity, feature)}: must be a column of single values, not of {dtype}"
        )
    return pl.col(feature.column)


def check_varied(feature: Feature, entity: Entity, table: pl.DataFrame, values: pl.Series) -> None:
    """Check that a column tells the rows of its table apart.

    Args:
        feature: the feature of the column.
        entity: the entity of the rows.
        table: the table [R rows].
        values: all values of the column; a row has each of its values once.

    Raises:
        InputError: there are no values, or every row has the same ones.
    """
    name, counts = ColumnName(entity, feature), values.drop_nulls().value_counts()["count"]
    if counts.is_empty():
        raise InputError(f"{name}: no {entity} has a value")
    if counts.min() == len(table):
        value = table[feature.column][0]
        raise InputError(f"{name}: all {entity}s have the same value, {value!r}")
