"""Columns of features: categories, numbers, texts and vectors, learned once and encoded alike.

Each kind of feature has a section in the config, and a class here with the methods ``read`` (cells
in the type of this kind [R]; null if missing), ``fit`` (learns the column's values, its fields:
arrays and what JSON can hold) and ``encode`` (what ``read`` returned; values that ``fit`` did not
see count as missing). The first two raise an `InputError` that names the feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import (
    CategoriesFeature,
    CategoryFeature,
    NumberFeature,
    Section,
    TextFeature,
    VectorFeature,
)
from recsys.data.database import MISSING_WORDS
from recsys.data.entity_tables import BOOLEANS, as_lists, is_vectors, plain_text
from recsys.data.histories import Int64s
from recsys.errors import InputError

Entity = Literal["item", "interaction", "user"]
"""The entities that have features."""

KEYS: dict[Entity, list[str]] = {
    "item": ["item_id"],
    "interaction": ["user_id", "item_id"],
    "user": ["user_id"],
}
"""The columns that identify the rows of an entity's table. They are not features."""

_WRITTEN_NUMBERS = BOOLEANS | dict.fromkeys(MISSING_WORDS)
_BLOCK = 1 << 22
"""Numbers of vectors that are scaled at a time."""


class FeatureCells(NamedTuple):
    """The cells of a feature in the table of an entity [R rows]."""

    entity: Entity
    feature: Any
    """Its section in the config."""
    table: pl.DataFrame

    @property
    def name(self) -> str:
        """The name of the feature in messages."""
        return f"model.{self.entity}_features: {self.feature.kind} {self.feature.column!r}"

    @property
    def dtype(self) -> Any:
        """The type of the column, which the table must have."""
        columns = [name for name in self.table.columns if name not in KEYS[self.entity]]
        if self.feature.column in columns:
            return self.table.schema[self.feature.column]
        keep = "; prepare the dataset with it in data.keep" if self.entity == "interaction" else ""
        raise self.error(f"no such column among {', '.join(columns) or 'none'}{keep}")

    def single_values(self) -> pl.Expr:
        """Return the column, whose cells may be neither lists nor structs."""
        if self.dtype.is_nested():
            raise self.error(f"must be a column of single values, not of {self.dtype}")
        return pl.col(self.feature.column)

    def row(self, index: int) -> str:
        """Name a row in a message."""
        keys = KEYS[self.entity]
        return ", ".join(f"{key.removesuffix('_id')} {self.table[key][index]!r}" for key in keys)

    def error(self, rule: str) -> InputError:
        """Return an error that names the feature."""
        return InputError(f"{self.name}: {rule}")

    def check_varied(self, values: pl.Series) -> None:
        """Check that all values, each once per row, tell the rows of the table apart."""
        counts = values.drop_nulls().value_counts()["count"]
        if counts.is_empty():
            raise self.error(f"no {self.entity} has a value")
        if counts.min() == len(self.table):
            value = self.table[self.feature.column][0]
            raise self.error(f"all {self.entity}s have the same value, {value!r}")


class EncodedCells(NamedTuple):
    """The cells of R rows as categories and numbers."""

    numbers: NDArray[np.float32] | NDArray[np.float16]
    """Shape [R, ``num_numbers`` of the column]; vectors are float16."""
    rows: Int64s = np.empty(0, np.int64)
    """Shape [N], ascending: the row of each category."""
    categories: Int64s = np.empty(0, np.int64)
    """Shape [N]: categories, numbered from 0."""


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """One value per row, or several: lists, or text with a separator."""

    values: list[str]
    """The V values, in ascending order."""
    num_numbers: ClassVar[int] = 0

    @staticmethod
    def read(cells: FeatureCells) -> pl.Series:
        """Return lists of different values [R]; null instead of an empty one."""
        inner, feature = cells.dtype, cells.feature
        if isinstance(feature, CategoryFeature):
            lists = pl.concat_list(cells.single_values())
        elif isinstance(inner, pl.List):
            lists, inner = pl.col(feature.column), inner.inner
        else:
            text = cells.single_values().cast(pl.String)
            lists, inner = text.str.split(feature.separator), pl.String()
        texts, element = lists.list.eval(plain_text(pl.element(), inner)), pl.element()
        values = texts.list.eval(element.filter(element != "").unique(maintain_order=True))
        return cells.table.select(pl.when(values.list.len() > 0).then(values)).to_series()

    @classmethod
    def fit(cls, cells: FeatureCells) -> Self:
        """Learn the values; two rows must share one."""
        values = cls.read(cells).explode().drop_nulls()
        cells.check_varied(values)
        if values.is_unique().all():
            raise cells.error(f"no two {cells.entity}s share a value")
        return cls(values.unique().sort().to_list())

    def encode(self, values: pl.Series) -> EncodedCells:
        """Return the categories of each row, each once."""
        table = pl.DataFrame({"row": np.arange(len(values)), "value": values}).explode("value")
        known = pl.DataFrame({"value": self.values, "category": np.arange(len(self.values))})
        present = table.unique(maintain_order=True).join(
            known, on="value", how="inner", maintain_order="left"
        )
        numbers = np.zeros((len(values), 0), dtype=np.float32)
        return EncodedCells(numbers, present["row"].to_numpy(), present["category"].to_numpy())

    @property
    def num_categories(self) -> int:
        """One per value."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """The mean and spread of a quantity, which becomes a number and whether it is missing."""

    mean: float
    spread: float
    num_categories: ClassVar[int] = 0
    num_numbers: ClassVar[int] = 2

    @staticmethod
    def read(cells: FeatureCells) -> pl.Series:
        """Return float64; a cell that is neither a number nor missing is refused."""
        raw = cells.table.select(cells.single_values()).to_series()
        written = raw.cast(pl.String).str.strip_chars().replace(_WRITTEN_NUMBERS)
        numbers = written.cast(pl.Float64, strict=False)
        wrong = written.is_not_null() & ~numbers.is_finite().fill_null(value=False)
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise cells.error(f"{cells.row(row)} has {raw[row]!r}, which is not a number")
        return numbers

    @classmethod
    def fit(cls, cells: FeatureCells) -> Self:
        """Learn mean and spread."""
        numbers = cls.read(cells)
        cells.check_varied(numbers)
        known = numbers.drop_nulls().to_numpy()
        return cls(float(known.mean()), float(known.std()) or 1.0)

    def encode(self, values: pl.Series) -> EncodedCells:
        """Return the standardised number, and 1 if it is missing, else 0."""
        missing = values.is_null().to_numpy()
        numbers = (values.fill_null(self.mean).to_numpy() - self.mean) / self.spread
        return EncodedCells(np.stack([numbers, missing], axis=1).astype(np.float32))


@dataclass(frozen=True, eq=False)
class TextColumn:
    """The words of a column and the main directions of their TF-IDF vectors."""

    words: list[str]
    rarity: NDArray[np.float64]
    """Shape [words]: inverse document frequencies."""
    directions: NDArray[np.float64]
    """Shape [dims, words]."""
    num_categories: ClassVar[int] = 0

    @staticmethod
    def read(cells: FeatureCells) -> pl.Series:
        """Return text."""
        text = cells.single_values().cast(pl.String).str.strip_chars()
        return cells.table.select(pl.when(text != "").then(text)).to_series()

    @classmethod
    def fit(cls, cells: FeatureCells) -> Self:
        """Learn words that two rows share, and their directions."""
        from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]
        from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]

        texts, dims = cls.read(cells), cells.feature.dims
        cells.check_varied(texts)
        try:
            vectorizer = TfidfVectorizer(min_df=2).fit(texts.drop_nulls())
        except ValueError:
            raise cells.error(f"no two {cells.entity}s share a word") from None
        words = vectorizer.get_feature_names_out().tolist()
        if dims >= len(words):
            raise cells.error(
                f"dims must be below {len(words)}, the words that two {cells.entity}s share, not "
                f"{dims}"
            )
        vectors = vectorizer.transform(texts.fill_null(""))
        # scikit-learn divides by the variance: 0 where all texts have the same words.
        with np.errstate(divide="ignore", invalid="ignore"):
            decomposition = TruncatedSVD(dims, random_state=0).fit(vectors)
        return cls(words, vectorizer.idf_, decomposition.components_)

    def encode(self, values: pl.Series) -> EncodedCells:
        """Return vectors of length 1, or 0 if no word is known."""
        # Loaded on use: scoring needs scikit-learn only for models that read text.
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize  # type: ignore[import-untyped]

        vectorizer = TfidfVectorizer(vocabulary=self.words)
        vectorizer.idf_ = self.rarity
        vectors = vectorizer.transform(values.fill_null("")) @ self.directions.T
        return EncodedCells(normalize(vectors).astype(np.float32))

    @property
    def num_numbers(self) -> int:
        """One per direction."""
        return len(self.directions)


@dataclass(frozen=True, eq=False)
class VectorColumn:
    """Vectors from elsewhere, such as embeddings of texts: of length 1, in half precision."""

    dim: int
    """The length of each vector, K."""
    num_categories: ClassVar[int] = 0
    num_numbers: ClassVar[int] = 0

    @staticmethod
    def read(cells: FeatureCells) -> pl.Series:
        """Return lists of finite numbers, all of one length."""
        column: str = cells.feature.column
        if cells.dtype == pl.Null:
            return cells.table[column].cast(pl.List(pl.Float32))
        if not is_vectors(cells.dtype):
            raise cells.error(f"must be a column of lists of floats, not of {cells.dtype}")
        vectors = as_lists(cells.table[column])
        known = np.flatnonzero(vectors.is_not_null().to_numpy())
        if not len(known):
            return vectors
        first, lengths = int(known[0]), vectors.list.len().fill_null(0).to_numpy()
        other = known[(lengths[known] == 0) | (lengths[known] != lengths[first])]
        if len(other):
            row = int(other[0])
            rule = f", not {lengths[first]} like {cells.row(first)}" if row else ""
            raise cells.error(f"{cells.row(row)} has {lengths[row]} numbers{rule}")
        wrong = ~vectors.drop_nulls().explode().is_finite().fill_null(value=False)
        if wrong.any():
            vector, place = divmod(int(wrong.arg_max() or 0), int(lengths[first]))
            row = int(known[vector])
            raise cells.error(
                f"{cells.row(row)} has {vectors[row][place]} at place {place}, which is not a "
                "finite number"
            )
        return vectors

    @classmethod
    def fit(cls, cells: FeatureCells) -> Self:
        """Learn the length of the vectors."""
        vectors = cls.read(cells)
        known = vectors.drop_nulls()
        if known.is_empty():
            raise cells.error(f"no {cells.entity} has a vector")
        column = cls(len(known[0]))
        directions = column.encode(vectors).numbers
        if (directions == directions[0]).all():
            raise cells.error(f"all {cells.entity}s have the same vector")
        return column

    def encode(self, values: pl.Series) -> EncodedCells:
        """Return vectors of length 1, float16; 0 if missing or all 0."""
        directions = np.zeros((len(values), self.dim), dtype=np.float16)
        known = values.drop_nulls().explode().to_numpy().reshape(-1, self.dim)
        directions[values.is_not_null().to_numpy()] = _of_length_one(known)
        return EncodedCells(directions)

    def read_fitting(self, cells: FeatureCells) -> NDArray[np.float16]:
        """Return the encoded vectors of a table [R, K], as long as the fitted ones."""
        vectors = self.read(cells)
        known = vectors.drop_nulls()
        if len(known) and len(known[0]) != self.dim:
            row = cells.row(int(vectors.is_not_null().arg_max() or 0))
            raise cells.error(
                f"{row} has {len(known[0])} numbers, not {self.dim} like the {cells.entity}s of "
                "the model"
            )
        return self.encode(vectors).numbers.astype(np.float16, copy=False)


FeatureColumn = CategoryColumn | NumberColumn | TextColumn | VectorColumn

COLUMN_CLASSES: Mapping[type[Section], type[FeatureColumn]] = {
    CategoryFeature: CategoryColumn,
    CategoriesFeature: CategoryColumn,
    NumberFeature: NumberColumn,
    TextFeature: TextColumn,
    VectorFeature: VectorColumn,
}
"""The class of each kind of feature in the config."""


def _of_length_one(rows: NDArray[Any]) -> NDArray[np.float16]:
    """Scale rows [R, K] to length 1; rows of zeros stay.

    First by their largest number, whose square may exceed any type.
    """
    scaled = np.empty(rows.shape, dtype=np.float16)
    size = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(rows), size):
        span = slice(start, start + size)
        block = rows[span].astype(np.float64)
        for order in (np.inf, 2):
            sizes = np.linalg.norm(block, order, axis=1, keepdims=True)
            block = block / np.where(sizes > 0, sizes, 1)
        scaled[span] = block
    return scaled
