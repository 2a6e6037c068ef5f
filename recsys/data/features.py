"""Features: columns of items, interactions and users as categories, numbers and vectors.

Encoders learn the values of a column once, from a dataset. Others count as missing later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from recsys.config.model import Feature, ModelConfig
from recsys.data.database import MISSING_WORDS
from recsys.data.entity_tables import BOOLEANS, as_lists, is_vectors, plain_text
from recsys.data.histories import Features, FeatureTable, Int64s
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError

Entity = Literal["item", "interaction", "user"]
KEYS = {"item": ["item_id"], "interaction": ["user_id", "item_id"], "user": ["user_id"]}
"""The columns that identify the rows of an entity's table. They are not features."""

ItemVectors = dict[str, Tensor]
"""The vectors of R items by column: float16 [R + 1, K], of length 1, or 0 if an item has none.
Row 0 is PAD."""

VECTORS, _FITTED = "vectors.safetensors", "features.json"
"""The files of a bundle with the vectors of its items, and with what encoders learned."""
_WRITTEN_NUMBERS = BOOLEANS | dict.fromkeys(MISSING_WORDS)
_BLOCK = 1 << 22
"""Numbers of vectors that are scaled at a time."""


class FeatureCells(NamedTuple):
    """The cells of a feature in the table of an entity [R rows]."""

    entity: Entity
    feature: Feature
    table: pl.DataFrame

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

    def error(self, rule: str, row: int | None = None) -> InputError:
        """Return an error that names the feature, and maybe a row."""
        if row is not None:
            keys = KEYS[self.entity]
            named = (f"{key.removesuffix('_id')} {self.table[key][row]!r}" for key in keys)
            rule = f"{', '.join(named)} {rule}"
        name = f"model.{self.entity}_features: {self.feature.kind} {self.feature.column!r}"
        return InputError(f"{name}: {rule}")

    def check_varied(self, values: pl.Series) -> None:
        """Check that all values, each once per row, tell the rows of the table apart."""
        counts = values.drop_nulls().value_counts()["count"]
        if counts.is_empty():
            raise self.error(f"no {self.entity} has a value")
        if counts.min() == len(self.table):
            value = self.table[self.feature.column][0]
            raise self.error(f"all {self.entity}s have the same value, {value!r}")


# --- Columns: read gives cells [R] of a kind, fit learns, encode makes numbers --------------------


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """One value per row, or several: lists, or text with a separator."""

    values: list[str]
    """The V values, in ascending order."""

    @staticmethod
    def read(cells: FeatureCells) -> pl.Series:
        """Return lists of different values [R]; null instead of an empty one."""
        inner, feature = cells.dtype, cells.feature
        if feature.kind == "category":
            lists = pl.concat_list(cells.single_values())
        elif isinstance(inner, pl.List) and not inner.inner.is_nested():
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

    def encode(self, values: pl.Series) -> tuple[Int64s, Int64s]:
        """Return the categories of each row, each once: rows [N], ascending, and numbers from 0."""
        table = pl.DataFrame({"row": np.arange(len(values)), "value": values}).explode("value")
        known = pl.DataFrame({"value": self.values, "category": np.arange(len(self.values))})
        present = table.join(known, on="value", how="inner", maintain_order="left")
        return present["row"].to_numpy(), present["category"].to_numpy()

    @property
    def num_categories(self) -> int:
        """V."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """The mean and spread of a quantity, which becomes a number and whether it is missing."""

    mean: float
    spread: float
    num_categories: ClassVar[int] = 0

    @staticmethod
    def read(cells: FeatureCells) -> pl.Series:
        """Return float64; a cell that is neither a number nor missing is refused."""
        raw = cells.table.select(cells.single_values()).to_series()
        written = raw.cast(pl.String).str.strip_chars().replace(_WRITTEN_NUMBERS)
        numbers = written.cast(pl.Float64, strict=False)
        wrong = written.is_not_null() & ~numbers.is_finite().fill_null(value=False)
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise cells.error(f"has {raw[row]!r}, which is not a number", row)
        return numbers

    @classmethod
    def fit(cls, cells: FeatureCells) -> Self:
        """Learn mean and spread."""
        numbers = cls.read(cells)
        cells.check_varied(numbers)
        known = numbers.drop_nulls().to_numpy()
        return cls(float(known.mean()), float(known.std()) if np.ptp(known) else 1.0)

    def encode(self, values: pl.Series) -> NDArray[np.float32]:
        """Return the standardised number, and 1 if it is missing, else 0 [R, 2]."""
        missing = values.is_null().to_numpy()
        numbers = (values.fill_null(self.mean).to_numpy() - self.mean) / self.spread
        return np.stack([numbers, missing], axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class VectorColumn:
    """Vectors from elsewhere, such as embeddings of texts: of length 1, in half precision."""

    dim: int
    """The length of each vector, K."""
    num_categories: ClassVar[int] = 0

    @staticmethod
    def read(cells: FeatureCells, dim: int | None = None) -> pl.Series:
        """Return lists of ``dim`` finite numbers, or as many as the first one has."""
        column: str = cells.feature.column
        if cells.dtype == pl.Null:
            return cells.table[column].cast(pl.List(pl.Float32))
        if not is_vectors(cells.dtype):
            raise cells.error(f"must be a column of lists of floats, not of {cells.dtype}")
        vectors = as_lists(cells.table[column])
        present = vectors.drop_nulls()
        lengths = present.list.len().to_numpy()
        dim = dim or int(lengths[:1].max(initial=0)) or 1
        good = lengths == dim
        if good.all():
            finite = present.explode().is_finite().fill_null(value=False)
            good = finite.to_numpy().reshape(-1, dim).all(axis=1)
        if not good.all():
            row = int(np.flatnonzero(vectors.is_not_null())[~good][0])
            raise cells.error(f"has no {dim} finite numbers", row)
        return vectors

    @classmethod
    def fit(cls, cells: FeatureCells) -> Self:
        """Learn the length of the vectors."""
        known = cls.read(cells).drop_nulls()
        if known.is_empty():
            raise cells.error(f"no {cells.entity} has a vector")
        return cls(len(known[0]))

    def encode(self, values: pl.Series) -> NDArray[np.float16]:
        """Return vectors of length 1 [R, K]; 0 if missing or all 0."""
        directions = np.zeros((len(values), self.dim), dtype=np.float16)
        rows = np.flatnonzero(values.is_not_null())
        known = values.drop_nulls().explode().to_numpy().reshape(-1, self.dim)
        size = max(1, _BLOCK // self.dim)
        for start in range(0, len(known), size):
            block = known[start : start + size].astype(np.float64)
            for order in (np.inf, 2):  # by the largest number first, whose square may overflow
                sizes = np.linalg.norm(block, order, axis=1, keepdims=True)
                block = block / np.where(sizes > 0, sizes, 1)
            directions[rows[start : start + size]] = block
        return directions


FeatureColumn = CategoryColumn | NumberColumn | VectorColumn

COLUMN_CLASSES: Mapping[str, type[FeatureColumn]] = {
    **dict.fromkeys(("category", "categories"), CategoryColumn),
    "number": NumberColumn,
    "vector": VectorColumn,
}
"""The class of each kind of feature in the config."""


# --- Encoders: all columns of an entity, and of a model -------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FeatureEncoder:
    """Encode tables of items, interactions or users as `FeatureTable` and `Features`."""

    entity: Entity
    fitted: Mapping[Feature, FeatureColumn] = field(default_factory=dict)
    """The column of each feature."""

    @classmethod
    def fit(
        cls, entity: Entity, features: Sequence[Feature], table: pl.DataFrame
    ) -> FeatureEncoder:
        """Learn categories and means from a table [R rows] with item_id, user_id or both.

        A column that is missing, tells no rows apart, or has values of another kind is refused.
        """
        cells = (FeatureCells(entity, feature, table) for feature in features)
        return cls(entity, {c.feature: COLUMN_CLASSES[c.feature.kind].fit(c) for c in cells})

    @property
    def columns(self) -> list[str]:
        """The names of the columns, each once."""
        return list(dict.fromkeys(feature.column for feature in self.fitted))

    @property
    def num_categories(self) -> int:
        """Number of categories of all columns together."""
        return sum(column.num_categories for column in self.fitted.values())

    @property
    def num_numbers(self) -> int:
        """Numbers per row of all columns together, K, without vectors."""
        return 2 * sum(isinstance(column, NumberColumn) for column in self.fitted.values())

    def vectors(self, table: pl.DataFrame) -> ItemVectors:
        """Return the vectors of a table [R rows], as long as the fitted ones, by column."""
        vectors = {}
        for feature, column in self.fitted.items():
            if isinstance(column, VectorColumn):
                cells = FeatureCells(self.entity, feature, table)
                rows = column.encode(column.read(cells, column.dim))
                vectors[feature.column] = torch.from_numpy(np.pad(rows, [(1, 0), (0, 0)]))
        return vectors

    def encode(self, table: pl.DataFrame, first: int = 1) -> FeatureTable:
        """Encode a table [R rows] without its vectors; categories are numbered from ``first``."""
        numbers = [np.zeros((len(table), 0), dtype=np.float32)]
        bags = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
        for feature, column in self.fitted.items():
            cells = FeatureCells(self.entity, feature, table)
            if isinstance(column, NumberColumn):
                numbers.append(column.encode(column.read(cells)))
            elif isinstance(column, CategoryColumn):
                rows, categories = column.encode(column.read(cells))
                shares = (1 / np.bincount(rows)[rows]).astype(np.float32)
                bags.append((rows + 1, first + categories, shares))
                first += column.num_categories
        rows, categories, shares = map(np.concatenate, zip(*bags, strict=True))
        order = np.argsort(rows, kind="stable")
        counts = np.bincount(rows, minlength=len(table) + 1)
        present = np.arange(counts.max(initial=1)) < counts[:, None]
        padded = np.zeros(present.shape, np.int64), np.zeros(present.shape, np.float32)
        padded[0][present], padded[1][present] = categories[order], shares[order]
        return FeatureTable(*padded, np.pad(np.hstack(numbers), [(1, 0), (0, 0)]))

    def read(self, table: pl.DataFrame, first: int = 1) -> Features:
        """Encode the rows of a table [N rows], equal rows once; see `encode`."""
        if not set(self.columns) <= set(table.columns):
            self.encode(table)  # raises an error that names the missing column
        equal = table.with_row_index("__row").group_by(self.columns, maintain_order=True)
        different = equal.agg(pl.first(*KEYS[self.entity]), "__row")
        numbers = different.select(pl.int_range(1, pl.len() + 1).alias("number"), "__row")
        rows = numbers.explode("__row").sort("__row")["number"].to_numpy()
        return Features(self.encode(different.drop("__row"), first), rows)


@dataclass(frozen=True, slots=True, eq=False)
class Encoders:
    """The feature encoders of a model."""

    items: FeatureEncoder = FeatureEncoder("item")
    interactions: FeatureEncoder = FeatureEncoder("interaction")
    users: FeatureEncoder = FeatureEncoder("user")

    @classmethod
    def fit(cls, config: ModelConfig, dataset: PreparedDataset) -> Encoders:
        """Learn from the full catalogue, and from interactions and users of the training part."""

        def fit(entity: Entity, table: Callable[[], pl.DataFrame]) -> FeatureEncoder:
            features = features_of(config, entity)
            return FeatureEncoder.fit(entity, features, table() if features else pl.DataFrame())

        return cls(
            fit("item", lambda: dataset.item_table),
            fit("interaction", lambda: dataset.interaction_table.filter(dataset.in_training)),
            fit("user", lambda: dataset.user_table.filter(dataset.cuts[:, 0] > 0)),
        )

    @property
    def input_columns(self) -> list[str]:
        """The columns of interactions and users that the model reads, each once."""
        return list(dict.fromkeys([*self.interactions.columns, *self.users.columns]))

    def of_rows(
        self, interactions: pl.DataFrame, users: pl.DataFrame, owners: Int64s
    ) -> tuple[Features, ...]:
        """Encode N interactions, and of their users [U rows] the owner of each interaction [N].

        The tables have the columns of the features, beside user_id and item_id.
        """
        first, found = 1 + self.interactions.num_categories, []
        if self.interactions.fitted:
            found.append(self.interactions.read(interactions))
        if self.users.fitted:
            found.append(self.users.read(users, first)[owners])
        return tuple(found)

    def read(self, dataset: PreparedDataset) -> PreparedDataset:
        """Return the dataset with the features that the model reads in its histories."""
        if not self.input_columns:
            return dataset
        owners = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
        features = self.of_rows(dataset.interaction_table, dataset.user_table, owners)
        return replace(dataset, features=features)

    def save(self, folder: Path) -> None:
        """Write what was learned into a bundle; nothing for a model without features."""
        encoders = [e for e in (self.items, self.interactions, self.users) if e.fitted]
        if encoders:
            fitted = {e.entity: list(map(asdict, e.fitted.values())) for e in encoders}
            (folder / _FITTED).write_text(json.dumps(fitted, sort_keys=True), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, config: ModelConfig) -> Encoders:
        """Read the file that `save` wrote for a model of the same config."""

        def read(entity: Entity) -> FeatureEncoder:
            features = features_of(config, entity)
            columns = json.loads((folder / _FITTED).read_bytes())[entity] if features else ()
            pairs = zip(features, columns, strict=True)
            return FeatureEncoder(entity, {f: COLUMN_CLASSES[f.kind](**c) for f, c in pairs})

        try:
            return cls(read("item"), read("interaction"), read("user"))
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{folder / _FITTED}: cannot be read as features: {error}") from error

    def save_vectors(self, folder: Path, items: pl.DataFrame) -> pl.DataFrame:
        """Write the vectors that the model reads, if it reads any; return the other columns."""
        if vectors := self.items.vectors(items):
            save_file(vectors, folder / VECTORS)
        return items.drop(*vectors)

    def open_vectors(self, folder: Path, num_items: int) -> ItemVectors:
        """Read the vectors that `save_vectors` wrote of so many items; others are refused."""
        expected = {
            feature.column: (torch.float16, (num_items + 1, column.dim))
            for feature, column in self.items.fitted.items()
            if isinstance(column, VectorColumn)
        }
        if not expected:
            return {}
        path = folder / VECTORS
        vectors = load_file(path)
        actual = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in vectors.items()}
        if actual != expected:
            raise InputError(f"{path}: has the vectors {actual}, not {expected}")
        return {name: tensor.clone() for name, tensor in vectors.items()}  # the file is mapped


NO_ENCODERS = Encoders()
"""The encoders of a model that reads only item tokens."""


def features_of(config: ModelConfig, entity: Entity) -> tuple[Feature, ...]:
    """Return the features of an entity that a model reads; none if its kind reads no features."""
    return getattr(config, f"{entity}_features", ())
