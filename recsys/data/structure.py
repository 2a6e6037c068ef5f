"""The structure of a prepared dataset's arrays, checked before anything indexes with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import InputError

_DTYPES = {"items": np.int32, "timestamps": np.int64, "offsets": np.int64, "cuts": np.int32}
_BLOCK = 1 << 22
"""Entries that are checked at a time, so that a memory-mapped array is not held as a whole."""


def read_array(path: Path) -> NDArray[Any]:
    """Map an array of a prepared dataset.

    Raises:
        InputError: it cannot be read, or has another type or number of dimensions.
    """
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as an array: {error}") from error
    dtype, dimensions = np.dtype(_DTYPES[path.stem]), 2 if path.stem == "cuts" else 1
    if array.dtype != dtype or array.ndim != dimensions:
        raise InputError(
            f"{path}: must be {dtype} with {dimensions} dimensions, not {array.dtype} with "
            f"{array.ndim}"
        )
    return array


def read_parquet(path: Path) -> pl.DataFrame:
    """Read a table of the library's own.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return pl.read_parquet(path)
    # A damaged Parquet page can make polars panic instead of raising.
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error


def check_structure(
    path: Path, arrays: Mapping[str, NDArray[Any]], users: pl.DataFrame, items: pl.DataFrame
) -> None:
    """Check that the arrays of a dataset fit each other and its tables.

    Args:
        path: the folder, for messages.
        arrays: items [N], timestamps [N], offsets [U + 1] and cuts [U, 3].
        users: the user table [U rows].
        items: the item table [I rows].

    Raises:
        InputError: the first array that does not, and what is wrong with it.
    """
    tokens, offsets, cuts = (arrays[name] for name in ("items", "offsets", "cuts"))
    count = len(tokens)

    def refuse(name: str, rule: str, found: object) -> None:
        raise InputError(f"{path / name}: {rule}, not {found}; prepare the dataset again")

    if len(arrays["timestamps"]) != count:
        refuse("timestamps.npy", f"must have {count} times", len(arrays["timestamps"]))
    if len(offsets) != len(users) + 1:
        refuse("offsets.npy", f"must have {len(users) + 1} offsets", len(offsets))
    if offsets[0] != 0 or offsets[-1] != count:
        refuse("offsets.npy", f"must go from 0 to {count}", f"from {offsets[0]} to {offsets[-1]}")
    lengths = np.diff(offsets)
    if (lengths < 0).any():
        refuse("offsets.npy", "must ascend", f"by {lengths.min()}")
    if cuts.shape != (len(users), 3):
        refuse("cuts.npy", f"must have the shape {(len(users), 3)}", cuts.shape)
    steps = np.diff(cuts, axis=1, prepend=0, append=lengths[:, None])
    if (steps < 0).any():
        row = int(np.argmin(steps.min(axis=1)))
        refuse("cuts.npy", f"must ascend from 0 to {lengths[row]}", f"{cuts[row].tolist()}")
    for start in range(0, count, _BLOCK):
        block = tokens[start : start + _BLOCK]
        for found in (int(block.min()), int(block.max())):
            if not 0 <= found <= len(items):
                refuse("items.npy", f"item tokens must be from 0 to {len(items)}", found)
    for table, key in ((users, "user_id"), (items, "item_id")):
        if key not in table.columns:
            refuse(f"{key.removesuffix('_id')}s.parquet", f"must have the column {key}", "without")
