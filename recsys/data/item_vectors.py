"""Files of vectors beside the item table: one row for each of its rows, in its order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from recsys.data.tables import TableSource, open_table
from recsys.errors import InputError, checked_path

VectorSource = str | os.PathLike[str] | NDArray[np.floating[Any]]
"""A file (.npy or .safetensors) or an array of floats [R, K]."""


def is_vectors(dtype: pl.DataType) -> bool:
    """Return whether the cells of a column are lists of floats, which may be vectors."""
    return isinstance(dtype, pl.List | pl.Array) and dtype.inner.is_float()


def as_lists(column: pl.Series) -> pl.Series:
    """Return a column of arrays as one of lists."""
    return column.cast(pl.List(cast("pl.List", column.dtype).inner))


def with_vectors(
    items: TableSource | None,
    vectors: Mapping[str, VectorSource] | None,
    encoding: str | None = None,
) -> TableSource | None:
    """Return the item table with a column for each array of vectors; as it is if there are none.

    Args:
        items: a table with the column item_id [R rows].
        vectors: by the name of the column: floats [R, K], row for row those of the table. A
            safetensors file has one tensor, or one of that name.
        encoding: of the table, if it is text that is neither UTF-8 nor UTF-16.

    Raises:
        InputError: there is no item table; a file cannot be read, has no such array, another number
            of rows than the table, or a number that is not finite; the table has the column.
    """
    if not vectors:
        return items
    if items is None:
        raise InputError(
            f"item vectors {min(vectors)!r}: belong to the rows of an item table: give one (items)"
        )
    opened = open_table(items, "the item table", encoding=encoding)
    opened.warn_of_swallowed_rows()
    opened.present(["item_id"])
    table = opened.read()
    columns: list[pl.Series] = []
    for name, source in vectors.items():
        file = str(source) if isinstance(source, str | os.PathLike) else f"item vectors {name!r}"
        rows = _read(source, name, file)
        if len(rows) != len(table):
            raise InputError(f"{file}: has {len(rows)} rows, but the item table has {len(table)}")
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            row = int(bad.argmax())
            value = rows[row][~np.isfinite(rows[row])][0]
            item = table["item_id"][row]
            raise InputError(
                f"{file}: row {row} (item {item!r}) has {value}, which is not a finite number"
            )
        columns.append(pl.Series(name, rows))
    for column in columns:
        if column.name in table.columns:
            raise InputError(f"item vectors {column.name!r}: the item table has this column")
    return table.with_columns(columns)


def _read(source: VectorSource, name: str, file: str) -> NDArray[np.floating[Any]]:
    """Read an array of floats [R, K]."""
    rows: Any = source
    if isinstance(source, str | os.PathLike):
        path = checked_path(source)
        readers = {".npy": _read_npy, ".safetensors": _read_safetensors}
        if path.suffix not in readers:
            raise InputError(f"{file}: must be .npy or .safetensors, not {path.suffix!r}")
        if not path.is_file():
            raise InputError(f"{file}: no such file")
        rows = readers[path.suffix](path, name)
    known = isinstance(rows, np.ndarray) and rows.dtype.kind == "f" and rows.dtype.itemsize <= 8
    if not (known and rows.ndim == 2):
        found = getattr(rows, "dtype", type(rows).__name__), getattr(rows, "shape", ())
        raise InputError(f"{file}: must be floats of the shape [rows, numbers], not {found}")
    native: NDArray[np.floating[Any]] = rows.astype(rows.dtype.newbyteorder("="), copy=False)
    return native


def _read_npy(path: Path, _: str) -> NDArray[Any]:
    try:
        rows: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as an array: {error}") from error
    return rows


def _read_safetensors(path: Path, name: str) -> NDArray[Any]:
    import torch  # it takes seconds to load, and all commands import this file

    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if name not in names and len(names) != 1:
                raise InputError(
                    f"{path}: must have one tensor, or one named {name!r}, not {', '.join(names)}"
                )
            tensor = file.get_tensor(name if name in names else names[0])
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
    if tensor.dtype == torch.bfloat16:  # numpy does not have it
        tensor = tensor.float()
    rows: NDArray[Any] = tensor.numpy()
    return rows
