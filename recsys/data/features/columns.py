"""Columns of features: categories, numbers, texts and vectors, learned once and encoded alike.

Each kind of feature has a section in the config, a class here, and an entry in `COLUMN_CLASSES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import (
    CategoriesFeature,
    CategoryFeature,
    Feature,
    NumberFeature,
    Section,
    TextFeature,
    VectorFeature,
)
from recsys.data.database import MISSING_WORDS
from recsys.data.entity_tables import BOOLEANS, as_lists, is_vectors, plain_text
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
_WRITTEN_NUMBERS = BOOLEANS | dict.fromkeys(MISSING_WORDS)
_BLOCK = 1 << 22
"""Numbers of vectors that are scaled at a time."""

F = TypeVar("F", bound=Feature)


class ColumnName(NamedTuple):
    """The name of a feature in messages."""

    entity: Entity
    feature: Feature

    def __str__(self) -> str:
        return f"model.{self.entity}_features: {self.feature.kind} {self.feature.column!r}"


class EncodedCells(NamedTuple):
    """The cells of R rows as categories and numbers."""

    numbers: NDArray[np.float32] | NDArray[np.float16]
    """Shape [R, `FeatureColumn.num_numbers`]; vectors are float16."""
    rows: NDArray[np.int64] = np.empty(0, np.int64)
    """Shape [N], ascending: the row of each category."""
    categories: NDArray[np.int64] = np.empty(0, np.int64)
    """Shape [N]: categories, numbered from 0."""


@dataclass(frozen=True, eq=False)
class FeatureColumn(ABC, Generic[F]):
    """One column of features; its fields, arrays and what JSON can hold, are learned by `fit`."""

    @classmethod
    @abstractmethod
    def fit(cls, feature: F, entity: Entity, table: pl.DataFrame) -> Self:
        """Learn the column's values from a table [R rows].

        Raises:
            InputError: as `read`, or the column has no value, or only one.
        """

    @staticmethod
    @abstractmethod
    def read(feature: F, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """Return the column's cells in the type of this kind [R]; null if missing.

        Raises:
            InputError: the table has no such column, or a value is not of this kind.
        """

    @abstractmethod
    def encode(self, cells: pl.Series) -> EncodedCells:
        """Encode cells from `read` [R]. Values that `fit` did not see count as missing."""

    @property
    def num_categories(self) -> int:
        """Number of different categories."""
        return 0

    @property
    def num_numbers(self) -> int:
        """Numbers per row."""
        return 0


@dataclass(frozen=True, eq=False)
class CategoryColumn(FeatureColumn[CategoryFeature | CategoriesFeature]):
    """One value per row, or several."""

    values: list[str]
    """The V values, in ascending order."""

    @staticmethod
    def read(
        feature: CategoryFeature | CategoriesFeature, entity: Entity, table: pl.DataFrame
    ) -> pl.Series:
        """Return lists of different values [R]; null instead of an empty one.

        The cells of several values are lists, or text with a separator.
        """
        inner: Any = _column_type(feature, entity, table)
        if isinstance(feature, CategoryFeature):
            lists = pl.concat_list(_single_values(feature, entity, table))
        elif isinstance(inner, pl.List):
            lists, inner = pl.col(feature.column), inner.inner
        else:
            text = _single_values(feature, entity, table).cast(pl.String)
            lists, inner = text.str.split(feature.separator), pl.String()
        texts, element = lists.list.eval(plain_text(pl.element(), inner)), pl.element()
        values = texts.list.eval(element.filter(element != "").unique(maintain_order=True))
        return table.select(pl.when(values.list.len() > 0).then(values)).to_series()

    @classmethod
    def fit(
        cls, feature: CategoryFeature | CategoriesFeature, entity: Entity, table: pl.DataFrame
    ) -> Self:
        """See `FeatureColumn.fit`; two rows must share a value."""
        values = cls.read(feature, entity, table).explode().drop_nulls()
        _check_varied(feature, entity, table, values)
        if values.is_unique().all():
            raise InputError(f"{ColumnName(entity, feature)}: no two {entity}s share a value")
        return cls(values.unique().sort().to_list())

    def encode(self, cells: pl.Series) -> EncodedCells:
        """See `FeatureColumn.encode`."""
        table = pl.DataFrame({"row": np.arange(len(cells)), "value": cells}).explode("value")
        known = pl.DataFrame({"value": self.values, "category": np.arange(len(self.values))})
        present = table.unique(maintain_order=True).join(
            known, on="value", how="inner", maintain_order="left"
        )
        numbers = np.zeros((len(cells), 0), dtype=np.float32)
        return EncodedCells(numbers, present["row"].to_numpy(), present["category"].to_numpy())

    @property
    def num_categories(self) -> int:
        """One per value."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class NumberColumn(FeatureColumn[NumberFeature]):
    """The mean and spread of a quantity."""

    mean: float
    spread: float

    @staticmethod
    def read(feature: NumberFeature, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """Return float64; a cell that is neither a number nor missing is refused."""
        cells = table.select(_single_values(feature, entity, table)).to_series()
        written = cells.cast(pl.String).str.strip_chars().replace(_WRITTEN_NUMBERS)
        numbers = written.cast(pl.Float64, strict=False)
        wrong = written.is_not_null() & ~numbers.is_finite().fill_null(value=False)
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise InputError(
                f"{ColumnName(entity, feature)}: {_row_in_words(table, entity, row)} has "
                f"{cells[row]!r}, which is not a number"
            )
        return numbers

    @classmethod
    def fit(cls, feature: NumberFeature, entity: Entity, table: pl.DataFrame) -> Self:
        """See `FeatureColumn.fit`."""
        cells = cls.read(feature, entity, table)
        _check_varied(feature, entity, table, cells)
        values = cells.drop_nulls().to_numpy()
        return cls(float(values.mean()), float(values.std()) or 1.0)

    def encode(self, cells: pl.Series) -> EncodedCells:
        """See `FeatureColumn.encode`: the standardised number, and 1 if it is missing, else 0."""
        missing = cells.is_null().to_numpy()
        values = (cells.fill_null(self.mean).to_numpy() - self.mean) / self.spread
        return EncodedCells(np.stack([values, missing], axis=1).astype(np.float32))

    @property
    def num_numbers(self) -> int:
        """The number, and whether it is missing."""
        return 2


@dataclass(frozen=True, eq=False)
class TextColumn(FeatureColumn[TextFeature]):
    """The words of a column and the main directions of their TF-IDF vectors."""

    words: list[str]
    rarity: NDArray[np.float64]
    """Shape [words]: inverse document frequencies."""
    directions: NDArray[np.float64]
    """Shape [dims, words]."""

    @staticmethod
    def read(feature: TextFeature, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """Return text."""
        text = _single_values(feature, entity, table).cast(pl.String).str.strip_chars()
        return table.select(pl.when(text != "").then(text)).to_series()

    @classmethod
    def fit(cls, feature: TextFeature, entity: Entity, table: pl.DataFrame) -> Self:
        """See `FeatureColumn.fit`; two rows must share a word."""
        from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]
        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

        cells, name = cls.read(feature, entity, table), ColumnName(entity, feature)
        _check_varied(feature, entity, table, cells)
        try:
            vectorizer = TfidfVectorizer(min_df=2).fit(cells.drop_nulls())
        except ValueError:
            raise InputError(f"{name}: no two {entity}s share a word") from None
        words = vectorizer.get_feature_names_out().tolist()
        if feature.dims >= len(words):
            raise InputError(
                f"{name}: dims must be below {len(words)}, the words that two {entity}s share, "
                f"not {feature.dims}"
            )
        vectors = vectorizer.transform(cells.fill_null(""))
        # scikit-learn divides by the variance: 0 where all texts have the same words.
        with np.errstate(divide="ignore", invalid="ignore"):
            decomposition = TruncatedSVD(feature.dims, random_state=0).fit(vectors)
        return cls(words, vectorizer.idf_, decomposition.components_)

    def encode(self, cells: pl.Series) -> EncodedCells:
        """See `FeatureColumn.encode`: vectors of length 1, or 0 if no word is known."""
        # Loaded on use: scoring needs scikit-learn only for models that read text.
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize  # type: ignore[import-untyped]

        vectorizer = TfidfVectorizer(vocabulary=self.words)
        vectorizer.idf_ = self.rarity
        vectors = vectorizer.transform(cells.fill_null("")) @ self.directions.T
        return EncodedCells(normalize(vectors).astype(np.float32))

    @property
    def num_numbers(self) -> int:
        """One per direction."""
        return len(self.directions)


@dataclass(frozen=True, eq=False)
class VectorColumn(FeatureColumn[VectorFeature]):
    """Vectors from elsewhere, such as embeddings of texts: of length 1, in half precision."""

    dim: int
    """The length of each vector, K."""

    @staticmethod
    def read(feature: VectorFeature, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """Return lists of finite numbers, all of one length."""
        dtype, name = _column_type(feature, entity, table), ColumnName(entity, feature)
        if dtype == pl.Null:
            return table[feature.column].cast(pl.List(pl.Float32))
        if not is_vectors(dtype):
            raise InputError(f"{name}: must be a column of lists of floats, not of {dtype}")
        cells = as_lists(table[feature.column])
        lengths = cells.list.len()
        first = lengths.is_not_null().arg_max()
        if first is None or lengths[first] is None:
            return cells
        wrong = ((lengths != lengths[first]) | (lengths == 0)).fill_null(value=False)
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            rule = f", not {lengths[first]} like {_row_in_words(table, entity, first)}"
            raise InputError(
                f"{name}: {_row_in_words(table, entity, row)} has {lengths[row]} numbers"
                f"{rule if row else ''}"
            )
        values = cells.drop_nulls().explode()
        wrong = ~values.is_finite().fill_null(value=False)
        if wrong.any():
            at = int(wrong.arg_max() or 0)
            row = int(np.flatnonzero(cells.is_not_null().to_numpy())[at // lengths[first]])
            raise InputError(
                f"{name}: {_row_in_words(table, entity, row)} has {values[at]} at place "
                f"{at % lengths[first]}, which is not a finite number"
            )
        return cells

    @classmethod
    def fit(cls, feature: VectorFeature, entity: Entity, table: pl.DataFrame) -> Self:
        """See `FeatureColumn.fit`: learns nothing but the length of the vectors."""
        cells, name = cls.read(feature, entity, table), ColumnName(entity, feature)
        known = cells.drop_nulls()
        if known.is_empty():
            raise InputError(f"{name}: no {entity} has a vector")
        column = cls(len(known[0]))
        directions = column.encode(cells).numbers
        if (directions == directions[0]).all():
            raise InputError(f"{name}: all {entity}s have the same vector")
        return column

    def encode(self, cells: pl.Series) -> EncodedCells:
        """See `FeatureColumn.encode`: vectors of length 1, float16; 0 if missing or all 0."""
        directions = np.zeros((len(cells), self.dim), dtype=np.float16)
        known = cells.drop_nulls().explode().to_numpy().reshape(-1, self.dim)
        directions[cells.is_not_null().to_numpy()] = _of_length_one(known)
        return EncodedCells(directions)

    def read_fitting(
        self, feature: VectorFeature, entity: Entity, table: pl.DataFrame
    ) -> NDArray[np.float16]:
        """Return the encoded vectors of a table [R, K].

        Raises:
            InputError: as `read`, or the vectors are shorter or longer than the fitted ones.
        """
        cells = self.read(feature, entity, table)
        known = cells.drop_nulls()
        if len(known) and len(known[0]) != self.dim:
            row = _row_in_words(table, entity, int(cells.is_not_null().arg_max() or 0))
            raise InputError(
                f"{ColumnName(entity, feature)}: {row} has {len(known[0])} numbers, not "
                f"{self.dim} like the {entity}s of the model"
            )
        return self.encode(cells).numbers.astype(np.float16, copy=False)


COLUMN_CLASSES: Mapping[type[Section], type[FeatureColumn[Any]]] = {
    CategoryFeature: CategoryColumn,
    CategoriesFeature: CategoryColumn,
    NumberFeature: NumberColumn,
    TextFeature: TextColumn,
    VectorFeature: VectorColumn,
}
"""The class of each kind of feature in the config."""


def blocks_of(shape: Sequence[int]) -> Iterator[slice]:
    """Yield blocks of the rows of vectors [R, K]."""
    size = max(1, _BLOCK // shape[1])
    return (slice(start, start + size) for start in range(0, shape[0], size))


def _of_length_one(rows: NDArray[Any]) -> NDArray[np.float16]:
    """Scale rows [R, K] to length 1; rows of zeros stay.

    First by their largest number, whose square may exceed any type.
    """
    scaled = np.empty(rows.shape, dtype=np.float16)
    for span in blocks_of(rows.shape):
        block = rows[span].astype(np.float64)
        for order in (np.inf, 2):
            sizes = np.linalg.norm(block, order, axis=1, keepdims=True)
            block = block / np.where(sizes > 0, sizes, 1)
        scaled[span] = block
    return scaled


def _column_type(feature: Feature, entity: Entity, table: pl.DataFrame) -> pl.DataType:
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


def _single_values(feature: Feature, entity: Entity, table: pl.DataFrame) -> pl.Expr:
    """Return a column of single values.

    Raises:
        InputError: the table has no such column, or its cells are lists or structs.
    """
    dtype = _column_type(feature, entity, table)
    if dtype.is_nested():
        raise InputError(
            f"{ColumnName(entity, feature)}: must be a column of single values, not of {dtype}"
        )
    return pl.col(feature.column)


def _check_varied(feature: Feature, entity: Entity, table: pl.DataFrame, values: pl.Series) -> None:
    """Check that all values of a column, each once per row, tell the rows of its table apart.

    Raises:
        InputError: there are no values, or every row has the same ones.
    """
    name, counts = ColumnName(entity, feature), values.drop_nulls().value_counts()["count"]
    if counts.is_empty():
        raise InputError(f"{name}: no {entity} has a value")
    if counts.min() == len(table):
        value = table[feature.column][0]
        raise InputError(f"{name}: all {entity}s have the same value, {value!r}")


def _row_in_words(table: pl.DataFrame, entity: Entity, row: int) -> str:
    return ", ".join(f"{key.removesuffix('_id')} {table[key][row]!r}" for key in KEYS[entity])
