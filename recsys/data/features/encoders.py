"""Feature encoders: tables of items, interactions and users as numbers.

An encoder learns categories, means and words once, from the rows of a dataset, and is saved with
the model, which has one for each entity whose features it reads.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors import numpy as numpy_files
from safetensors import torch as torch_files
from torch import Tensor

from recsys.config import Feature, FeatureReaderConfig, ModelConfig, VectorFeature
from recsys.data.features.columns import (
    COLUMN_CLASSES,
    KEYS,
    Entity,
    FeatureCells,
    FeatureColumn,
    VectorColumn,
)
from recsys.data.histories import Features, FeatureTable, Int64s
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError

logger = logging.getLogger(__name__)

ItemVectors = Mapping[str, Tensor]
"""The vectors of R items by column: float16 [R + 1, K], of length 1, or 0 if an item has none.
Row 0 is PAD."""

VECTORS = "vectors.safetensors"
"""The file of a bundle with the vectors of its items."""

_FILES: dict[Entity, str] = {
    "item": "features.safetensors",
    "interaction": "interaction_features.safetensors",
    "user": "user_features.safetensors",
}


@dataclass(frozen=True, slots=True, eq=False)
class FeatureEncoder:
    """Encode tables of items, interactions or users as `FeatureTable` and `Features`."""

    entity: Entity
    """The entity of the tables' rows."""
    features: tuple[Feature, ...]
    fitted: tuple[FeatureColumn, ...]
    """The fitted column of each feature."""

    @classmethod
    def fit(
        cls, entity: Entity, features: Sequence[Feature], table: pl.DataFrame
    ) -> FeatureEncoder:
        """Learn categories, means and words from a table [R rows] with item_id, user_id or both.

        Raises:
            InputError: a column is missing, has no value, the same value in all rows, or values
                that are not of its kind.
        """
        fitted = (
            COLUMN_CLASSES[type(feature)].fit(FeatureCells(entity, feature, table))
            for feature in features
        )
        return cls(entity, tuple(features), tuple(fitted))

    @property
    def columns(self) -> list[str]:
        """The names of the columns, each once."""
        return list(dict.fromkeys(feature.column for feature in self.features))

    @property
    def num_categories(self) -> int:
        """Number of categories of all columns together."""
        return sum(column.num_categories for column in self.fitted)

    @property
    def num_numbers(self) -> int:
        """Numbers per row of all columns together, K, without vectors."""
        return sum(column.num_numbers for column in self.fitted)

    @property
    def _vectors(self) -> dict[str, tuple[VectorFeature, VectorColumn]]:
        return {
            feature.column: (feature, column)
            for feature, column in zip(self.features, self.fitted, strict=True)
            if isinstance(feature, VectorFeature) and isinstance(column, VectorColumn)
        }

    @property
    def vector_dims(self) -> dict[str, int]:
        """The length of the vectors, by column."""
        return {name: column.dim for name, (_, column) in self._vectors.items()}

    def vectors(self, table: pl.DataFrame) -> ItemVectors:
        """Return the vectors of a table [R rows], as long as the fitted ones, by column."""
        vectors = {}
        for name, (feature, column) in self._vectors.items():
            rows = column.read_fitting(FeatureCells(self.entity, feature, table))
            vectors[name] = torch.from_numpy(np.pad(rows, [(1, 0), (0, 0)]))
        return vectors

    def encode(self, table: pl.DataFrame, first: int = 1) -> FeatureTable:
        """Encode the rows of a table [R rows], without their vectors.

        Values that `fit` did not see count as missing. Categories are numbered from ``first``.
        """
        numbers = [np.zeros((len(table), 0), dtype=np.float32)]
        bags = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
        for feature, column in zip(self.features, self.fitted, strict=True):
            if isinstance(feature, VectorFeature):
                continue
            cells = FeatureCells(self.entity, feature, table)
            values = column.read(cells)
            encoded = column.encode(values)
            if column.num_categories:
                _warn_of_unknown(cells, values, encoded.rows)
            shares = (1 / np.bincount(encoded.rows)[encoded.rows]).astype(np.float32)
            bags.append((encoded.rows + 1, first + encoded.categories, shares))
            numbers.append(encoded.numbers.astype(np.float32, copy=False))
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
        rows = np.empty(len(table), dtype=np.int64)
        counts = different["__row"].list.len().to_numpy()
        numbers = np.repeat(np.arange(1, len(different) + 1), counts)
        rows[different["__row"].explode().to_numpy()] = numbers
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
        numpy_files.save_file(tensors, path, {"encoders": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], entity: Entity, features: Sequence[Feature]
    ) -> FeatureEncoder:
        """Read a file that `save` wrote for an encoder of the same features."""
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


def _warn_of_unknown(cells: FeatureCells, values: pl.Series, known: Int64s) -> None:
    """Warn if most cells of a column of categories have no value that `fit` saw."""
    unknown = values.is_not_null().to_numpy().copy()
    present = unknown.sum()
    unknown[known] = False
    if 2 * unknown.sum() > present:
        logger.warning(
            "%s: %d of %d values were never seen in training and count as missing, such as %s",
            *(cells.name, unknown.sum(), present),
            ", ".join(map(repr, values[int(unknown.argmax())])),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Encoders:
    """The feature encoders of a model; None for an entity without features."""

    items: FeatureEncoder | None = None
    interactions: FeatureEncoder | None = None
    users: FeatureEncoder | None = None

    @classmethod
    def fit(cls, config: ModelConfig, dataset: PreparedDataset) -> Encoders:
        """Learn categories, means and words; see `FeatureEncoder.fit`.

        Item encoders learn from the full catalogue, which is known before any purchase; encoders of
        interactions and users learn only from the training part.
        """

        def fit(entity: Entity, table: Callable[[], pl.DataFrame]) -> FeatureEncoder | None:
            features = features_of(config, entity)
            return FeatureEncoder.fit(entity, features, table()) if features else None

        return cls(
            fit("item", lambda: dataset.item_table),
            fit("interaction", lambda: dataset.interaction_table.filter(dataset.in_training)),
            fit("user", lambda: dataset.user_table.filter(dataset.cuts[:, 0] > 0)),
        )

    @property
    def _input_encoders(self) -> list[FeatureEncoder]:
        return [encoder for encoder in (self.interactions, self.users) if encoder is not None]

    @property
    def num_input_categories(self) -> int:
        """Categories of interactions and users together; those of users are numbered last."""
        return sum(encoder.num_categories for encoder in self._input_encoders)

    @property
    def num_input_numbers(self) -> int:
        """Numbers of interactions and users together."""
        return sum(encoder.num_numbers for encoder in self._input_encoders)

    @property
    def reads_inputs(self) -> bool:
        """Whether the model reads features of interactions or users."""
        return bool(self._input_encoders)

    @property
    def input_columns(self) -> list[str]:
        """The columns of interactions and users that the model reads, each once."""
        names = (name for encoder in self._input_encoders for name in encoder.columns)
        return list(dict.fromkeys(names))

    def read_interactions(self, table: pl.DataFrame) -> Features | None:
        """Encode interactions: user_id, item_id and their columns [N rows]."""
        return None if self.interactions is None else self.interactions.read(table)

    def read_users(self, table: pl.DataFrame) -> Features | None:
        """Encode users: user_id and their columns [N rows]."""
        first = 1 if self.interactions is None else 1 + self.interactions.num_categories
        return None if self.users is None else self.users.read(table, first)

    def read(self, dataset: PreparedDataset) -> PreparedDataset:
        """Return the dataset with the features that the model reads in its histories."""
        if not self.reads_inputs:
            return dataset
        return replace(
            dataset,
            interaction_features=self.read_interactions(dataset.interaction_table),
            user_features=self.read_users(dataset.user_table),
        )

    def save_vectors(self, folder: Path, items: pl.DataFrame) -> pl.DataFrame:
        """Write the vectors that the model reads, if it reads any; return the other columns."""
        vectors = {} if self.items is None else self.items.vectors(items)
        if vectors:
            save_vectors(vectors, folder / VECTORS)
        return items.drop(*vectors)

    def open_vectors(self, folder: Path, num_items: int) -> ItemVectors:
        """Map the vectors that `save_vectors` wrote of so many items; pages are read on use.

        Raises:
            InputError: the file cannot be read, or has vectors of other names or shapes.
        """
        dims = {} if self.items is None else self.items.vector_dims
        if not dims:
            return {}
        path = folder / VECTORS
        try:
            with safe_open(path, framework="pt") as file:
                vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
        expected = {name: (torch.float16, (num_items + 1, dim)) for name, dim in dims.items()}
        actual = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in vectors.items()}
        if actual != expected:
            raise InputError(f"{path}: has the vectors {actual}, not {expected}")
        return vectors

    def save(self, folder: Path) -> None:
        """Write a safetensors file for each entity with features."""
        for encoder in (self.items, *self._input_encoders):
            if encoder is not None:
                encoder.save(folder / _FILES[encoder.entity])

    @classmethod
    def load(cls, folder: Path, config: ModelConfig) -> Encoders:
        """Read the files that `save` wrote for a model of the same config."""
        return cls(
            *(
                FeatureEncoder.load(folder / file, entity, features)
                if (features := features_of(config, entity))
                else None
                for entity, file in _FILES.items()
            )
        )


NO_ENCODERS = Encoders()
"""The encoders of a model that reads only item tokens."""


def features_of(config: ModelConfig, entity: Entity) -> tuple[Feature, ...]:
    """Return the features of an entity that a model reads; none if its kind reads no features."""
    if not isinstance(config, FeatureReaderConfig):
        return ()
    features: tuple[Feature, ...] = getattr(config, f"{entity}_features")
    return features


def save_vectors(vectors: ItemVectors, path: Path) -> None:
    """Write vectors as safetensors."""
    torch_files.save_file({name: tensor.contiguous() for name, tensor in vectors.items()}, path)
