"""The folder of a prepared dataset: its manifest, and how its files are written and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic import Field

from recsys.config import Columns, Section, Split
from recsys.data.entity_tables import as_lists, is_vectors
from recsys.data.histories import PAD, Int32s, Int64s
from recsys.data.splits import user_blocks
from recsys.errors import InputError
from recsys.folders.digests import folder_sha256
from recsys.folders.manifest import MANIFEST, FolderManifest

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_DTYPES = {"items": _INT32, "timestamps": _INT64, "offsets": _INT64, "cuts": _INT32}
_BLOCK = 1 << 20
"""Entries that are read at a time, so that a memory-mapped array is not held as a whole."""


class AppendedLog(Section):
    """A log that was appended to a dataset."""

    source: str
    """The name or path of the log."""
    appended_at: str
    """The date and time, UTC."""
    rows_read: int
    """The rows of the source."""
    log_fingerprint: str
    """The SHA-256 of the rows of the log, before any filter."""
    fingerprint_before: str
    """The fingerprint of the dataset before it was appended."""


class Manifest(FolderManifest):
    """The manifest of a prepared dataset."""

    noun: ClassVar[str] = "a prepared dataset"
    remedy: ClassVar[str] = "prepare the dataset again"
    current_version: ClassVar[int] = 2

    format: Literal["recsys.prepared"] = "recsys.prepared"
    format_version: int = current_version
    origin: str
    """The name or path of the log."""
    log_fingerprint: str
    """The SHA-256 of the rows of the first log, before any filter."""
    fingerprint: str
    """The SHA-256 of settings and content. It depends neither on the log's file nor on when it was
    prepared."""
    settings: dict[str, Any]
    """The fields of DataConfig that determine the content."""
    columns: Columns
    """The names of the log's columns, which do not affect the content."""
    ordered_by: str
    """The total order of the interactions."""
    counts: dict[str, int]
    """Sizes of the log and of the dataset; see `recsys.data.manifest.count_rows`."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """The number of dropped rows of the source, by reason: names of conditions and of settings that
    drop rows, and blank rows. They and the interactions add up to the rows read."""
    appended: tuple[AppendedLog, ...] = ()
    """The logs that were appended, the earliest first."""

    def has_same_content(self, other: Manifest) -> bool:
        """Return whether a dataset, and what an append needs beside it, equals another one."""
        names = ("fingerprint", "log_fingerprint", "counts", "dropped")
        return all(getattr(self, name) == getattr(other, name) for name in names)


def open_arrays(
    path: Path, listed: Collection[str]
) -> tuple[dict[str, NDArray[Any]], pl.DataFrame, pl.DataFrame]:
    """Map the arrays of a dataset, by name, and read its user and item tables; check them."""
    needed = {*(f"{name}.npy" for name in _DTYPES), "users.parquet", "items.parquet"}
    if missing := needed - set(listed):
        raise InputError(f"{path / MANIFEST} lists no {min(missing)}; {Manifest.remedy}")
    arrays: dict[str, NDArray[Any]] = {}
    for name in _DTYPES:
        try:
            arrays[name] = np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path / name}.npy: cannot be read as an array: {error}") from error
    users = read_own_table(path / "users.parquet", ["user_id"])
    items = read_own_table(path / "items.parquet", ["item_id"])
    _check_structure(path, arrays, len(users), len(items))
    return arrays, users, items


def read_own_table(path: Path, columns: Collection[str]) -> pl.DataFrame:
    """Read a Parquet file that the library wrote, with some columns and maybe more."""
    try:
        table = pl.read_parquet(path)
    # A damaged Parquet page can make polars panic instead of raising.
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if missing := set(columns) - set(table.columns):
        raise InputError(f"{path}: has no column {min(missing)}")
    return table


def _check_structure(
    path: Path, arrays: Mapping[str, NDArray[Any]], users: int, items: int
) -> None:
    """Check that arrays fit each other and so many users and items, before any is an index."""

    def refuse(name: str, rule: str) -> NoReturn:
        raise InputError(f"{path / name}.npy: {rule}")

    rows, offsets, cuts = arrays["items"].size, arrays["offsets"], arrays["cuts"]
    shapes = {"items": (rows,), "timestamps": (rows,), "offsets": (users + 1,), "cuts": (users, 3)}
    for name, dtype in _DTYPES.items():
        actual = arrays[name].dtype, arrays[name].shape
        if actual != (dtype, shapes[name]):
            refuse(name, f"must be {dtype} {shapes[name]}, not {actual[0]} {actual[1]}")
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != rows or (lengths < 0).any():
        refuse("offsets", f"must ascend from 0 to {rows}")
    if (np.diff(cuts, axis=1, prepend=0, append=lengths[:, None]) < 0).any():
        refuse("cuts", "must ascend from 0 to the number of the user's interactions")
    for start in range(0, rows, _BLOCK):
        block = arrays["items"][start : start + _BLOCK]
        if block.min() < 0 or block.max() > items:
            refuse("items", f"item tokens must be from 0 to {items}")


# --- Contents and how they are written ------------------------------------------------------------

INTERACTIONS = "interactions"
"""The name of the table of kept columns."""
OUTSIDE = "outside"
"""The name of the table of items outside the catalogue."""
_ROW_GROUP = 1 << 18
"""Rows of a row group."""


@dataclass(frozen=True)
class Contents:
    """The arrays and tables of a dataset."""

    arrays: Mapping[str, NDArray[Any]]
    """By the names of their files; see `recsys.data.prepared.PreparedDataset`."""
    tables: Mapping[str, pl.DataFrame]
    """The user and the item table."""
    split: Split
    """What the cut points are of."""
    kept: Callable[[], Iterable[pl.DataFrame]] | None
    """Gives the kept columns of the interactions in order, in blocks of a multiple of
    `_ROW_GROUP` rows, if there are any."""
    outside: pl.Series
    """The item ids of the interactions outside the catalogue, in order. The arrays have PAD there,
    and an append may move such items into the catalogue."""


def dataset_fingerprint(settings: dict[str, object], contents: Contents) -> str:
    """Return the SHA-256 of the settings and the content of a dataset."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, array in sorted(contents.arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    for block in contents.kept() if contents.kept else ():
        digest.update(block.write_ndjson().encode())
    for _, table in sorted(contents.tables.items()):
        vectors = [name for name, dtype in table.schema.items() if is_vectors(dtype)]
        for rows in table.drop(vectors).iter_slices(_ROW_GROUP):
            digest.update(rows.write_ndjson().encode())
        for name in vectors:  # as text they would take minutes for a million items
            lists = as_lists(table[name])
            lengths = lists.list.len().cast(pl.Int64).fill_null(-1).to_numpy()
            values = lists.drop_nulls().explode().fill_null(float("nan")).to_numpy()
            for array in (np.ascontiguousarray(lengths), np.ascontiguousarray(values)):
                digest.update(f"{name} {array.dtype}".encode())
                digest.update(array.data)
    return digest.hexdigest()


def write_contents(folder: Path, contents: Contents, arrays: Path) -> dict[str, str]:
    """Write a dataset into a folder, and return the SHA-256 of each file.

    The arrays are moved from another folder on the same disk, which has them already.
    """
    for name in contents.arrays:
        (arrays / f"{name}.npy").rename(folder / f"{name}.npy")
    for name, table in contents.tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    if len(contents.outside):
        pl.DataFrame({"item_id": contents.outside}).write_parquet(folder / f"{OUTSIDE}.parquet")
    if contents.kept is not None:
        _write_in_groups(folder / f"{INTERACTIONS}.parquet", contents.kept())
    return folder_sha256(folder)


def _write_in_groups(path: Path, blocks: Iterable[pl.DataFrame]) -> None:
    groups = (rows.to_arrow() for block in blocks for rows in block.iter_slices(_ROW_GROUP))
    first = next(groups)
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        for group in chain([first], groups):
            writer.write_table(group.combine_chunks())


def count_copies(
    items: Int32s, timestamps: Int64s, offsets: Int64s, cuts: Int32s
) -> tuple[int, int]:
    """Count the interactions inside the catalogue that equal another one in user, item and time.

    The arrays are those of a dataset.

    Returns:
        Their number, and that of held-out ones which equal one of an earlier part.

    >>> log = [7, 7, 8], [1, 1, 2], [0, 3], [[1, 2, 3]]
    >>> count_copies(*map(np.array, log))
    (2, 1)
    """
    keys, copies, across = ("user", "item", "time"), 0, 0
    for low, high in user_blocks(offsets, _BLOCK):
        rows = slice(offsets[low], offsets[high])
        users = np.repeat(np.arange(low, high), np.diff(offsets[low : high + 1]))
        same = (np.diff(timestamps[rows]) == 0) & (np.diff(users) == 0)
        tied = (np.append(same, False) | np.insert(same, 0, False)) & (items[rows] != PAD)
        places, users = offsets[low] + np.flatnonzero(tied), users[tied]
        ends = offsets[users, None] + cuts[users, :2]
        table = pl.DataFrame(
            {
                **dict(zip(keys, (users, items[places], timestamps[places]), strict=True)),
                "part": (places[:, None] >= ends).sum(axis=1),
            }
        )
        later = pl.col("part") > pl.col("part").min().over(keys)
        counts = table.select(later.sum(), (pl.len().over(keys) > 1).sum().alias("copies")).row(0)
        across, copies = across + counts[0], copies + counts[1]
    return copies, across


def count_rows(dropped: Mapping[str, int], contents: Contents) -> dict[str, int]:
    """Count the rows of the source (rows_read), and the parts of a dataset."""
    items, tables = contents.arrays["items"], contents.tables
    train, valid, test = contents.arrays["cuts"].sum(axis=0, dtype=np.int64).tolist()
    return {
        "rows_read": len(items) + sum(dropped.values()),
        "interactions": len(items),
        "users": len(tables["users"]),
        "items": len(tables["items"]),
        "train": train,
        "valid": valid - train,
        "test": test - valid,
        "outside_catalogue": int(np.count_nonzero(items == PAD)),
    }
