"""The kinds of feature columns: categories, numbers and text; vectors are next door."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

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
from recsys.data.features.feature_column import (
    KEYS,
    ColumnName,
    EncodedCells,
    Entity,
    FeatureColumn,
    Width,
    check_varied,
    column_type,
    single_values,
)
from recsys.data.features.vectors import VectorColumn
from recsys.data.log_columns import BOOLEANS, plain_text
from recsys.data.missing import MISSING_WORDS
from recsys.errors import InputError

FeatureT = TypeVar("FeatureT", bound=Feature)


@dataclass(frozen=True, slots=True, eq=False)
class _ValuesColumn(ABC, Generic[FeatureT]):
    """The values of a column of categories; its kinds differ in how they read cells."""

    values: list[str]
    """The V values, in ascending order."""

    @staticmethod
    @abstractmethod
    def read(feature: FeatureT, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """See `FeatureColumn.read`: lists of different values [R]; null instead of an empty one."""

    @classmethod
    def fit(cls, feature: FeatureT, entity: Entity, table: pl.DataFrame) -> Self:
        """See `FeatureColumn.fit`; two rows must share a value."""
        values = cls.read(feature, entity, table).explode().drop_nulls()
        check_varied(feature, entity, table, values)
        if values.is_unique().all():
            raise InputError(f"{ColumnName(entity, feature)}: no two {entity}s share a value")
        return cls(values.unique().sort().to_list())

    def encode(self, cells: pl.Series) -> EncodedCells:
        """See `FeatureColumn.encode`."""
        table = pl.DataFrame({"row": np.arange(len(cells)), "value": cells}).explode("value")
        known = pl.DataFrame({"value": self.values, "category": np.arange(len(self.values))})
        found = table.unique(maintain_order=True).join(
            known, on="value", how="inner", maintain_order="left"
        )
        numbers = np.zeros((len(cells), 0), dtype=np.float32)
        return EncodedCells(found["row"].to_numpy(), found["category"].to_numpy(), numbers)

    @property
    def width(self) -> Width:
        """One category per value."""
        return Width(len(self.values), 0)


class CategoryColumn(_ValuesColumn[CategoryFeature]):
    """One value per row."""

    __slots__ = ()

    @staticmethod
    def read(feature: CategoryFeature, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """See `FeatureColumn.read`."""
        column, dtype = single_values(feature, entity, table), table.schema[feature.column]
        return _different(table, pl.concat_list(column), dtype)


class CategoriesColumn(_ValuesColumn[CategoriesFeature]):
    """Several values per row."""

    __slots__ = ()

    @staticmethod
    def read(feature: CategoriesFeature, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """See `FeatureColumn.read`: the cells are lists, or text with a separator."""
        dtype = column_type(feature, entity, table)
        if isinstance(dtype, pl.List):
            return _different(table, pl.col(feature.column), cast("pl.DataType", dtype.inner))
        column = single_values(feature, entity, table)
        return _different(table, column.cast(pl.String).str.split(feature.separator), pl.String())


@dataclass(frozen=True, slots=True, eq=False)
class NumberColumn:
    """The mean and spread of a quantity."""

    mean: float
    spread: float

    @staticmethod
    def read(feature: NumberFeature, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """See `FeatureColumn.read`: float64, refused if a cell is neither a number nor missing."""
        rows = table.select(*KEYS[entity], cell=single_values(feature, entity, table))
        written = pl.col("cell").cast(pl.String).str.strip_chars().replace(_WRITTEN_NUMBERS)
        number = written.cast(pl.Float64, strict=False)
        wrong = rows.filter(written.is_not_null(), ~number.is_finite().fill_null(value=False))
        if len(wrong):
            *ids, value = wrong.row(0)
            keys = (key.removesuffix("_id") for key in KEYS[entity])
            row = ", ".join(f"{key} {id_!r}" for key, id_ in zip(keys, ids, strict=True))
            name = ColumnName(entity, feature)
            raise InputError(f"{name}: {row} has {value!r}, which is not a number")
        return rows.select(number).to_series()

    @classmethod
    def fit(cls, feature: NumberFeature, entity: Entity, table: pl.DataFrame) -> Self:
        """See `FeatureColumn.fit`."""
        cells = cls.read(feature, entity, table)
        check_varied(feature, entity, table, cells)
        values = cells.drop_nulls().to_numpy()
        return cls(float(values.mean()), float(values.std()) or 1.0)

    def encode(self, cells: pl.Series) -> EncodedCells:
        """See `FeatureColumn.encode`: the standardised number, and 1 if it is missing, else 0."""
        missing = cells.is_null().to_numpy()
        values = (cells.fill_null(self.mean).to_numpy() - self.mean) / self.spread
        return _numbers(np.stack([values, missing], axis=1).astype(np.float32))

    @property
    def width(self) -> Width:
        """The number, and whether it is missing."""
        return Width(0, 2)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """The words of a column and the main directions of their TF-IDF vectors."""

    words: list[str]
    rarity: NDArray[np.float64]
    """Shape [words]: inverse document frequencies."""
    directions: NDArray[np.float64]
    """Shape [dims, words]."""

    @staticmethod
    def read(feature: TextFeature, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """See `FeatureColumn.read`."""
        text = single_values(feature, entity, table).cast(pl.String).str.strip_chars()
        return table.select(pl.when(text != "").then(text)).to_series()

    @classmethod
    def fit(cls, feature: TextFeature, entity: Entity, table: pl.DataFrame) -> Self:
        """See `FeatureColumn.fit`; two rows must share a word."""
        from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]
        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

        cells, name = cls.read(feature, entity, table), ColumnName(entity, feature)
        check_varied(feature, entity, table, cells)
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
        return _numbers(normalize(vectors).astype(np.float32))

    @property
    def width(self) -> Width:
        """One number per direction."""
        return Width(0, len(self.directions))


COLUMN_CLASSES: Mapping[type[Section], type[FeatureColumn[Any]]] = {
    CategoryFeature: CategoryColumn,
    CategoriesFeature: CategoriesColumn,
    NumberFeature: NumberColumn,
    TextFeature: TextColumn,
    VectorFeature: VectorColumn,
}
"""The class of each kind of feature in the config."""


_WRITTEN_NUMBERS = BOOLEANS | dict.fromkeys(MISSING_WORDS)


def _different(table: pl.DataFrame, lists: pl.Expr, inner: pl.DataType) -> pl.Series:
    """Return the different values of each list, without empty ones; null if none is left."""
    texts, element = lists.list.eval(plain_text(pl.element(), inner)), pl.element()
    values = texts.list.eval(element.filter(element != "").unique(maintain_order=True))
    return table.select(pl.when(values.list.len() > 0).then(values)).to_series()


def _numbers(numbers: NDArray[np.float32]) -> EncodedCells:
    """Return encoded cells without categories."""
    return EncodedCells(np.empty(0, np.int64), np.empty(0, np.int64), numbers)
