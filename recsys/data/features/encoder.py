"""Features: tables of items, interactions or users as the numbers that a model reads.

What has to be learned for that (categories, means, words) is learned once, from the rows of a
dataset, and kept: so rows that come later are read in the same way.
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

from recsys.config import Feature
from recsys.data.features.columns import (
    KEYS,
    CategoryColumn,
    Column,
    Kind,
    NumberColumn,
    column_class,
    fit_column,
    read_cells,
)
from recsys.data.features.table import Features, FeatureTable
from recsys.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class FeatureEncoder:
    """Tables of items, interactions or users in, `FeatureTable` and `Features` out."""

    of: Kind
    """What the rows of the tables are."""
    features: tuple[Feature, ...]
    encoders: tuple[Column, ...]
    """One for each of the features."""

    @classmethod
    def fit(cls, of: Kind, features: Sequence[Feature], table: pl.DataFrame) -> FeatureEncoder:
        """Learn categories, means and words.

        Args:
            of: what the rows of the table are.
            features: at least one.
            table: [R rows]; item_id, user_id or both say which they are.

        Raises:
            InputError: a column is not there, has no value, the same one in all rows, or values
                that are not of its kind.
        """
        columns = tuple(fit_column(feature, of, table) for feature in features)
        return cls(of, tuple(features), columns)

    @property
    def num_categories(self) -> int:
        """Of all columns together."""
        return sum(len(one.values) for one in self.encoders if isinstance(one, CategoryColumn))

    @property
    def num_numbers(self) -> int:
        """Of all columns together, K."""
        return sum(
            2 if isinstance(one, NumberColumn) else len(one.directions)
            for one in self.encoders
            if not isinstance(one, CategoryColumn)
        )

    @property
    def columns(self) -> list[str]:
        """Those of the features, each once."""
        return list(dict.fromkeys(feature.column for feature in self.features))

    def encode(self, table: pl.DataFrame, first: int = 1) -> FeatureTable:
        """The features of the rows of a table [R rows]; values not seen before count as missing.

        Args:
            table: see `fit`.
            first: number of the first category.

        Raises:
            InputError: a column is not there, or has values that are not of its kind.
        """
        numbers = [np.zeros((len(table), 0), dtype=np.float32)]
        rows, categories, shares = (
            [np.empty(0, dtype)] for dtype in (np.int64, np.int64, np.float32)
        )
        for feature, encoder in zip(self.features, self.encoders, strict=True):
            cells = read_cells(feature, self.of, table)
            if not isinstance(encoder, CategoryColumn):
                numbers.append(encoder.encode(cells))
                continue
            having, category = encoder.encode(cells)
            rows.append(having + 1)
            categories.append(first + category)
            shares.append((1 / np.bincount(having)[having]).astype(np.float32))
            first += len(encoder.values)
        bags = _padded(
            len(table) + 1,
            np.concatenate(rows),
            np.concatenate(categories),
            np.concatenate(shares),
        )
        return FeatureTable(*bags, np.pad(np.hstack(numbers), [(1, 0), (0, 0)]))

    def read(self, table: pl.DataFrame, first: int = 1) -> Features:
        """The features of the rows of a table [N rows], of which many are the same: see `encode`.

        Raises:
            InputError: as `encode`.
        """
        if not set(self.columns) <= set(table.columns):
            self.encode(table)  # says what is not there
        same = table.with_row_index("__row").group_by(self.columns, maintain_order=True)
        different = same.agg(pl.first(*KEYS[self.of]), "__row")
        rows = np.empty(len(table), dtype=np.int64)
        counts = different["__row"].list.len().to_numpy()
        rows[different["__row"].explode().to_numpy()] = np.repeat(
            np.arange(1, len(different) + 1), counts
        )
        return Features(self.encode(different.drop("__row"), first), rows)

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
    def load(
        cls, path: str | os.PathLike[str], of: Kind, features: Sequence[Feature]
    ) -> FeatureEncoder:
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
            return cls(
                of, tuple(features), tuple(column_class(one)(**fields) for one, fields in pairs)
            )
        except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as {of} features: {error}") from error


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
