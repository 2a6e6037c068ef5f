"""Vectors from elsewhere, such as embeddings of texts: checked, of length 1, in half precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from recsys.config import VectorFeature
from recsys.data.features.feature_column import (
    KEYS,
    ColumnName,
    EncodedCells,
    Entity,
    Width,
    column_type,
)
from recsys.data.item_vectors import as_lists, is_vectors
from recsys.errors import InputError

ItemVectors = Mapping[str, Tensor]
"""The vectors of R items by column: float16 [R + 1, K], of length 1, or 0 if an item has none.
Row 0 is PAD."""

_BLOCK = 1 << 22
"""Numbers that are scaled at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class VectorColumn:
    """A column of vectors."""

    dim: int
    """The length of each vector, K."""

    @staticmethod
    def read(feature: VectorFeature, entity: Entity, table: pl.DataFrame) -> pl.Series:
        """See `FeatureColumn.read`: lists of finite numbers, all of one length [R]."""
        dtype, name = column_type(feature, entity, table), ColumnName(entity, feature)
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
            rule = f", not {lengths[first]} like {_row(table, entity, first)}" if row else ""
            raise InputError(f"{name}: {_row(table, entity, row)} has {lengths[row]} numbers{rule}")
        values = cells.drop_nulls().explode()
        wrong = ~values.is_finite().fill_null(value=False)
        if wrong.any():
            at = int(wrong.arg_max() or 0)
            row = int(np.flatnonzero(cells.is_not_null().to_numpy())[at // lengths[first]])
            raise InputError(
                f"{name}: {_row(table, entity, row)} has {values[at]} at place "
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
        present = cells.is_not_null().to_numpy()
        directions = np.zeros((len(cells), self.dim), dtype=np.float16)
        known = cells.drop_nulls().explode().to_numpy().reshape(-1, self.dim)
        directions[present] = _of_length_one(known)
        none = np.empty(0, np.int64)
        return EncodedCells(none, none, directions)

    @property
    def width(self) -> Width:
        """The numbers of a vector."""
        return Width(0, self.dim)

    def vectors(self, feature: VectorFeature, entity: Entity, table: pl.DataFrame) -> Tensor:
        """Return the vectors of a table [R + 1, K]; see `ItemVectors`.

        Raises:
            InputError: as `read`, or the vectors are shorter or longer than the fitted ones.
        """
        cells = self.read(feature, entity, table)
        known = cells.drop_nulls()
        if len(known) and len(known[0]) != self.dim:
            row = int(cells.is_not_null().arg_max() or 0)
            raise InputError(
                f"{ColumnName(entity, feature)}: {_row(table, entity, row)} has {len(known[0])} "
                f"numbers, not {self.dim} like the {entity}s of the model"
            )
        return torch.from_numpy(np.pad(self.encode(cells).numbers, [(1, 0), (0, 0)]))


def save_vectors(vectors: ItemVectors, path: Path) -> None:
    """Write vectors as safetensors."""
    save_file({name: tensor.contiguous() for name, tensor in vectors.items()}, path)


def open_vectors(path: Path, dims: Mapping[str, int], num_items: int) -> ItemVectors:
    """Map the vectors of a file that `save_vectors` wrote; pages are read when they are used.

    Args:
        path: the file.
        dims: the length of the vectors, K, by column.
        num_items: R.

    Raises:
        InputError: the file cannot be read, or does not have these vectors.
    """
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
    for name in sorted(found.keys() | dims.keys()):
        expected = (num_items + 1, dims[name]) if name in dims else "unknown"
        tensor = found.get(name)
        shape = "missing" if tensor is None else tuple(tensor.shape)
        if shape != expected:
            raise InputError(f"{path}: the vectors {name!r} are {shape}, not {expected}")
        if tensor is not None and tensor.dtype != torch.float16:
            raise InputError(f"{path}: the vectors {name!r} are {tensor.dtype}, not torch.float16")
        if tensor is not None and not all(
            tensor[span].isfinite().all() for span in _blocks(tensor.shape)
        ):
            raise InputError(f"{path}: the vectors {name!r} are not finite")
    return found


def _of_length_one(rows: NDArray[Any]) -> NDArray[np.float16]:
    """Scale rows [R, K] to length 1; rows of zeros stay.

    First by their largest number, whose square may exceed any type.
    """
    scaled = np.empty(rows.shape, dtype=np.float16)
    for span in _blocks(rows.shape):
        block = rows[span].astype(np.float64)
        for order in (np.inf, 2):
            sizes = np.linalg.norm(block, order, axis=1, keepdims=True)
            block = block / np.where(sizes > 0, sizes, 1)
        scaled[span] = block
    return scaled


def _blocks(shape: Sequence[int]) -> Iterator[slice]:
    size = max(1, _BLOCK // shape[1])
    return (slice(start, start + size) for start in range(0, shape[0], size))


def _row(table: pl.DataFrame, entity: Entity, row: int) -> str:
    """Name a row in messages by its keys."""
    keys = (f"{key.removesuffix('_id')} {table[key][row]!r}" for key in KEYS[entity])
    return ", ".join(keys)
