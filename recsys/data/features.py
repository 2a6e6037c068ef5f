"""Item features: columns of an item table as the numbers that a model reads.

What has to be learned for that (categories, means, words) is learned once, from the items of a
dataset, and kept: so items that come later are read in the same way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]
from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
from sklearn.preprocessing import normalize  # type: ignore[import-untyped]

from recsys.config import Categories, Category, ItemFeature, Number, Text
from recsys.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True, eq=False)
class ItemFeatures:
    """The features of I items; row i is item token i, row 0 (PAD) has none."""

    categories: NDArray[np.int64]
    """Categories of each item [I + 1, M], from 1, those of all columns numbered together; 0 fills
    up."""
    shares: NDArray[np.float32]
    """How much each of them counts [I + 1, M]: those of one column sum to 1. 0 where 0 fills up."""
    numbers: NDArray[np.float32]
    """Numbers and directions of text [I + 1, K]; 0 where they are missing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Categories:
    values: list[str]
    """V of them, in ascending order."""

    @classmethod
    def fit(cls, cells: pl.Series, name: str) -> _Categories:
        """From lists of values [I]."""
        values = cells.explode().drop_nulls()
        if values.is_unique().all():
            raise InputError(f"{name}: no two items share a value")
        return cls(values.unique().sort().to_list())

    def encode(self, cells: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and categories, from 0, of all that is known in lists of values [I]."""
        table = pl.DataFrame({"row": np.arange(len(cells)), "value": cells}).explode("value")
        known = pl.DataFrame({"value": self.values, "category": np.arange(len(self.values))})
        found = table.unique(maintain_order=True).join(
            known, on="value", how="inner", maintain_order="left"
        )
        return found["row"].to_numpy(), found["category"].to_numpy()


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    mean: float
    spread: float

    @classmethod
    def fit(cls, cells: pl.Series) -> _Numbers:
        """From numbers [I], some missing."""
        values = cells.drop_nulls().to_numpy()
        return cls(float(values.mean()), float(values.std()) or 1.0)

    def encode(self, cells: pl.Series) -> NDArray[np.float32]:
        """Standardised, and 1 where there is none [I, 2]."""
        missing = cells.is_null().to_numpy()
        values = (cells.fill_null(self.mean).to_numpy() - self.mean) / self.spread
        return np.stack([values, missing], axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Words:
    words: list[str]
    rarity: NDArray[np.float64]
    """Inverse document frequency, by word."""
    directions: NDArray[np.float64]
    """[dims, words]."""

    @classmethod
    def fit(cls, cells: pl.Series, dims: int, name: str) -> _Words:
        """From texts [I], some missing."""
        try:
            vectorizer = TfidfVectorizer(min_df=2).fit(cells.drop_nulls())
        except ValueError:
            raise InputError(f"{name}: no two items share a word") from None
        words = vectorizer.get_feature_names_out().tolist()
        if dims >= len(words):
            raise InputError(
                f"{name}: dims must be below {len(words)}, the words that two items share, "
                f"not {dims}"
            )
        found = TruncatedSVD(dims, random_state=0).fit(vectorizer.transform(cells.fill_null("")))
        return cls(words, vectorizer.idf_, found.components_)

    def encode(self, cells: pl.Series) -> NDArray[np.float32]:
        """Vectors of length 1, or 0 where no word is known [I, dims]."""
        vectorizer = TfidfVectorizer(vocabulary=self.words)
        vectorizer.idf_ = self.rarity
        vectors = vectorizer.transform(cells.fill_null("")) @ self.directions.T
        return normalize(vectors).astype(np.float32)  # type: ignore[no-any-return]


_Encoder = _Categories | _Numbers | _Words


@dataclass(frozen=True, slots=True, eq=False)
class ItemEncoder:
    """Item tables in, `ItemFeatures` out."""

    features: tuple[ItemFeature, ...]
    encoders: tuple[_Encoder, ...]
    """One for each of the features."""

    @classmethod
    def fit(cls, features: Sequence[ItemFeature], items: pl.DataFrame) -> ItemEncoder:
        """Learn categories, means and words.

        Args:
            features: at least one.
            items: the item table [I rows].

        Raises:
            InputError: a column is not there, has no value, the same one for all items, or values
                that are not of its kind.
        """
        return cls(tuple(features), tuple(_fit(feature, items) for feature in features))

    @property
    def num_categories(self) -> int:
        """Of all columns together."""
        return sum(len(one.values) for one in self.encoders if isinstance(one, _Categories))

    def encode(self, items: pl.DataFrame) -> ItemFeatures:
        """The features of the items of a table [I rows]; values not seen before count as missing.

        Raises:
            InputError: a column is not there, or has values that are not of its kind.
        """
        numbers = [np.zeros((len(items), 0), dtype=np.float32)]
        rows, categories, shares = (
            [np.empty(0, dtype)] for dtype in (np.int64, np.int64, np.float32)
        )
        first = 1
        for feature, encoder in zip(self.features, self.encoders, strict=True):
            cells = _cells(feature, items)
            if not isinstance(encoder, _Categories):
                numbers.append(encoder.encode(cells))
                continue
            having, category = encoder.encode(cells)
            rows.append(having + 1)
            categories.append(first + category)
            shares.append((1 / np.bincount(having)[having]).astype(np.float32))
            first += len(encoder.values)
        bags = _padded(
            len(items) + 1,
            np.concatenate(rows),
            np.concatenate(categories),
            np.concatenate(shares),
        )
        return ItemFeatures(*bags, np.pad(np.hstack(numbers), [(1, 0), (0, 0)]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file: arrays, and all else as its metadata."""
        tensors: dict[str, NDArray[Any]] = {}
        facts: list[dict[str, Any]] = []
        for number, encoder in enumerate(self.encoders):
            fields = asdict(encoder)
            arrays = {name for name, value in fields.items() if isinstance(value, np.ndarray)}
            tensors |= {f"{number}.{name}": np.ascontiguousarray(fields[name]) for name in arrays}
            facts.append({name: fields[name] for name in fields if name not in arrays})
        save_file(tensors, path, {"encoders": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike[str], features: Sequence[ItemFeature]) -> ItemEncoder:
        """Read what `save` wrote of an encoder for the same features.

        Raises:
            InputError: the file cannot be read, or is of other features.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads(file.metadata()["encoders"])
                for name in file.keys():  # noqa: SIM118
                    number, field = name.split(".")
                    facts[int(number)][field] = file.get_tensor(name)
            pairs = zip(features, facts, strict=True)
            return cls(tuple(features), tuple(_kind(one)(**fields) for one, fields in pairs))
        except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as item features: {error}") from error


def _name(feature: ItemFeature) -> str:
    return f"model.item_features: {feature.kind} {feature.column!r}"


def _kind(feature: ItemFeature) -> type[_Encoder]:
    if isinstance(feature, Number):
        return _Numbers
    return _Words if isinstance(feature, Text) else _Categories


def _fit(feature: ItemFeature, items: pl.DataFrame) -> _Encoder:
    cells, name = _cells(feature, items), _name(feature)
    if not cells.count():
        raise InputError(f"{name}: no item has a value")
    nested = isinstance(cells.dtype, pl.List)
    values = cells.explode().drop_nulls().value_counts() if nested else cells.value_counts()
    if values["count"].min() == len(cells):
        raise InputError(f"{name}: all items have the same value, {items[feature.column][0]!r}")
    if isinstance(feature, Number):
        return _Numbers.fit(cells)
    if isinstance(feature, Text):
        return _Words.fit(cells, feature.dims, name)
    return _Categories.fit(cells, name)


def _cells(feature: ItemFeature, items: pl.DataFrame) -> pl.Series:
    """A column as its kind has it [I]: numbers, text or lists of text; null where nothing is.

    Raises:
        InputError: there is no such column, or it has other values.
    """
    name, columns = _name(feature), [column for column in items.columns if column != "item_id"]
    if feature.column not in columns:
        known = f"among {', '.join(columns)}" if columns else "in the item table: it has none"
        hint = did_you_mean(feature.column, columns)
        raise InputError(f"{name}: no such column {known}{hint}")
    column, dtype = pl.col(feature.column), items.schema[feature.column]
    lists = isinstance(dtype, pl.List)
    if dtype.is_nested() and not (lists and isinstance(feature, Categories)):
        raise InputError(f"{name}: a column of single values, not of {dtype}")
    if isinstance(feature, Number):
        return _numbers(items.select("item_id", cell=column), name)
    if isinstance(feature, Text):
        text = column.cast(pl.String).str.strip_chars()
        return items.select(pl.when(text != "").then(text)).to_series()
    if isinstance(feature, Category):
        values = pl.concat_list(column.cast(pl.String))
    elif lists:
        values = column.cast(pl.List(pl.String))
    else:
        values = column.cast(pl.String).str.split(feature.separator)
    element = pl.element().str.strip_chars()
    some = values.list.eval(element.filter(element != "").unique(maintain_order=True))
    return items.select(pl.when(some.list.len() > 0).then(some)).to_series()


def _numbers(items: pl.DataFrame, name: str) -> pl.Series:
    """The numbers in the column cell, float64; neither written as a number nor missing: refused."""
    written = pl.col("cell").cast(pl.String).str.strip_chars().replace(["", "NaN"], None)
    number = written.cast(pl.Float64, strict=False)
    wrong = items.filter(written.is_not_null(), ~number.is_finite().fill_null(value=False))
    if len(wrong):
        item, value = wrong.row(0)
        raise InputError(f"{name}: item {item!r} has {value!r}, which is no number")
    return items.select(number).to_series()


def _padded(
    num_rows: int,
    rows: NDArray[np.int64],
    categories: NDArray[np.int64],
    shares: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Categories and their shares by row, as wide as the longest row, and at least 1."""
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=num_rows)
    present = np.arange(counts.max(initial=1)) < counts[:, None]
    bags = np.zeros(present.shape, np.int64), np.zeros(present.shape, np.float32)
    bags[0][present], bags[1][present] = categories[order], shares[order]
    return bags
