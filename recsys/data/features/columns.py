"""One column of features: what is learned of it, and its cells as categories or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]
from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
from sklearn.preprocessing import normalize  # type: ignore[import-untyped]

from recsys.config import Categories, Category, Feature, Number, Text
from recsys.errors import InputError, did_you_mean

Kind = Literal["item", "interaction", "user"]
"""What it is that has features."""

KEYS: dict[Kind, list[str]] = {
    "item": ["item_id"],
    "interaction": ["user_id", "item_id"],
    "user": ["user_id"],
}
"""Columns that tell the rows of a table apart, and are no features."""
_PLACES: dict[Kind, str] = {
    "item": "in the item table: it has none",
    "interaction": "of the log is kept",
    "user": "in the user table: it has none",
}


@dataclass(frozen=True, slots=True)
class ColumnName:
    """What messages call a feature."""

    of: Kind
    feature: Feature

    def __str__(self) -> str:
        return f"model.{self.of}_features: {self.feature.kind} {self.feature.column!r}"


@dataclass(frozen=True, slots=True, eq=False)
class CategoryColumn:
    """One or several of V values."""

    values: list[str]
    """V of them, in ascending order."""

    @classmethod
    def fit(cls, cells: pl.Series, name: ColumnName) -> CategoryColumn:
        """From lists of values [R]."""
        values = cells.explode().drop_nulls()
        if values.is_unique().all():
            raise InputError(f"{name}: no two {name.of}s share a value")
        return cls(values.unique().sort().to_list())

    def encode(self, cells: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and categories, from 0, of all that is known in lists of values [R]."""
        table = pl.DataFrame({"row": np.arange(len(cells)), "value": cells}).explode("value")
        known = pl.DataFrame({"value": self.values, "category": np.arange(len(self.values))})
        found = table.unique(maintain_order=True).join(
            known, on="value", how="inner", maintain_order="left"
        )
        return found["row"].to_numpy(), found["category"].to_numpy()


@dataclass(frozen=True, slots=True, eq=False)
class NumberColumn:
    """A quantity."""

    mean: float
    spread: float

    @classmethod
    def fit(cls, cells: pl.Series) -> NumberColumn:
        """From numbers [R], some missing."""
        values = cells.drop_nulls().to_numpy()
        return cls(float(values.mean()), float(values.std()) or 1.0)

    def encode(self, cells: pl.Series) -> NDArray[np.float32]:
        """Standardised, and 1 where there is none [R, 2]."""
        missing = cells.is_null().to_numpy()
        values = (cells.fill_null(self.mean).to_numpy() - self.mean) / self.spread
        return np.stack([values, missing], axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """Words and their main directions."""

    words: list[str]
    rarity: NDArray[np.float64]
    """Inverse document frequency, by word."""
    directions: NDArray[np.float64]
    """[dims, words]."""

    @classmethod
    def fit(cls, cells: pl.Series, dims: int, name: ColumnName) -> TextColumn:
        """From texts [R], some missing."""
        try:
            vectorizer = TfidfVectorizer(min_df=2).fit(cells.drop_nulls())
        except ValueError:
            raise InputError(f"{name}: no two {name.of}s share a word") from None
        words = vectorizer.get_feature_names_out().tolist()
        if dims >= len(words):
            raise InputError(
                f"{name}: dims must be below {len(words)}, the words that two {name.of}s share, "
                f"not {dims}"
            )
        found = TruncatedSVD(dims, random_state=0).fit(vectorizer.transform(cells.fill_null("")))
        return cls(words, vectorizer.idf_, found.components_)

    def encode(self, cells: pl.Series) -> NDArray[np.float32]:
        """Vectors of length 1, or 0 where no word is known [R, dims]."""
        vectorizer = TfidfVectorizer(vocabulary=self.words)
        vectorizer.idf_ = self.rarity
        vectors = vectorizer.transform(cells.fill_null("")) @ self.directions.T
        return normalize(vectors).astype(np.float32)  # type: ignore[no-any-return]


Column = CategoryColumn | NumberColumn | TextColumn


def column_class(feature: Feature) -> type[Column]:
    """What learns of a column of this kind."""
    if isinstance(feature, Number):
        return NumberColumn
    return TextColumn if isinstance(feature, Text) else CategoryColumn


def fit_column(feature: Feature, of: Kind, table: pl.DataFrame) -> Column:
    """Learn of a column; for arguments and errors see `FeatureEncoder.fit`."""
    cells, name = read_cells(feature, of, table), ColumnName(of, feature)
    if not cells.count():
        raise InputError(f"{name}: no {of} has a value")
    nested = isinstance(cells.dtype, pl.List)
    values = cells.explode().drop_nulls().value_counts() if nested else cells.value_counts()
    if values["count"].min() == len(cells):
        raise InputError(f"{name}: all {of}s have the same value, {table[feature.column][0]!r}")
    if isinstance(feature, Number):
        return NumberColumn.fit(cells)
    if isinstance(feature, Text):
        return TextColumn.fit(cells, feature.dims, name)
    return CategoryColumn.fit(cells, name)


def read_cells(feature: Feature, of: Kind, table: pl.DataFrame) -> pl.Series:
    """A column as its kind has it [R]: numbers, text or lists of text; null where nothing is.

    Raises:
        InputError: there is no such column, or it has other values.
    """
    name, columns = ColumnName(of, feature), [one for one in table.columns if one not in KEYS[of]]
    if feature.column not in columns:
        known = f"among {', '.join(columns)}" if columns else _PLACES[of]
        hint = did_you_mean(feature.column, columns)
        if of == "interaction" and not hint:
            hint = "; prepare the dataset with it among data.keep"
        raise InputError(f"{name}: no such column {known}{hint}")
    column, dtype = pl.col(feature.column), table.schema[feature.column]
    lists = isinstance(dtype, pl.List)
    if dtype.is_nested() and not (lists and isinstance(feature, Categories)):
        raise InputError(f"{name}: a column of single values, not of {dtype}")
    if isinstance(feature, Number):
        return _numbers(table.select(*KEYS[of], cell=column), name)
    if isinstance(feature, Text):
        text = column.cast(pl.String).str.strip_chars()
        return table.select(pl.when(text != "").then(text)).to_series()
    if isinstance(feature, Category):
        values = pl.concat_list(column.cast(pl.String))
    elif lists:
        values = column.cast(pl.List(pl.String))
    else:
        values = column.cast(pl.String).str.split(feature.separator)
    element = pl.element().str.strip_chars()
    some = values.list.eval(element.filter(element != "").unique(maintain_order=True))
    return table.select(pl.when(some.list.len() > 0).then(some)).to_series()


def _numbers(table: pl.DataFrame, name: ColumnName) -> pl.Series:
    """The numbers in the column cell, float64; neither written as a number nor missing: refused."""
    written = pl.col("cell").cast(pl.String).str.strip_chars().replace(["", "NaN"], None)
    number = written.cast(pl.Float64, strict=False)
    wrong = table.filter(written.is_not_null(), ~number.is_finite().fill_null(value=False))
    if len(wrong):
        *ids, value = wrong.row(0)
        keys = (key.removesuffix("_id") for key in KEYS[name.of])
        row = ", ".join(f"{key} {one!r}" for key, one in zip(keys, ids, strict=True))
        raise InputError(f"{name}: {row} has {value!r}, which is no number")
    return table.select(number).to_series()
