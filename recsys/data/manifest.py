"""The folder of a prepared dataset: manifest, files checked when they are opened, how they come."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
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
from recsys.data.histories import PAD
from recsys.data.splits import user_blocks
from recsys.errors import InputError
from recsys.folders.digests import folder_sha256
from recsys.folders.manifest import MANIFEST, FolderManifest

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_DTYPES = {"items": _INT32, "timestamps": _INT64, "offsets": _INT64, "cuts": _INT32}
_BLOCK = 1 << 20
"""Entries that are read at a time, so that a memory-mapped array is not held as a whole."""


class Drift(Section):
    """How an appended log differs from the dataset before it.

    It describes the interactions that the append added: rows that the settings drop do not count.
    """

    interactions: int
    """The number of interactions added."""
    interaction_share: float
    """Their share of all interactions, from 0 to 1; likewise:"""
    new_users: int
    """The users that the dataset did not have."""
    new_user_share: float
    """Their share of the users of the added interactions."""
    new_items: int
    """The items that the dataset did not have, in no part of its split."""
    new_item_share: float
    """Their share of the items of the added interactions."""
    late: int
    """The added interactions that are older than the newest one of the dataset."""
    late_share: float
    """Their share of the added interactions."""
    since_last: int | None
    """The time from the newest interaction of the dataset to the newest one added, in the unit of
    the log's times (dates: seconds); None if nothing was added."""
    popularity_shift: float | None
    """The Jensen-Shannon distance (base 2) of the items' shares of the interactions, before and
    in the appended log: 0 if they are equal, 1 if no item is in both; None if nothing was added."""
    shift_by_chance: float | None
    """The same distance for as many interactions that are drawn from the dataset's own shares: a
    shift that is not larger says nothing."""


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
    drift: Drift
    """How the log differs from the dataset before it."""


class Manifest(FolderManifest):
    """The manifest of a prepared dataset."""

    noun: ClassVar[str] = "a prepared dataset"
    remedy: ClassVar[str] = "prepare the dataset again"
    current_version: ClassVar[int] = 2
    own_names: ClassVar[re.Pattern[str]] = re.compile(
        r"(items|timestamps|offsets|cuts)\.npy|(users|items|interactions|outside)\.parquet"
    )

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
    filtered_on: str
    """The rows on which the minimum numbers of interactions were counted."""
    counts: dict[str, int]
    """Sizes of the log and of the dataset; see `recsys.data.manifest.count_rows`."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """The number of dropped rows of the source, by reason: names of conditions and of settings that
    drop rows, and blank rows. They and the interactions add up to the rows read."""
    appended: tuple[AppendedLog, ...] = ()
    """The logs that were appended, the earliest first."""


def open_arrays(
    path: Path, listed: Collection[str]
) -> tuple[dict[str, NDArray[Any]], pl.DataFrame, pl.DataFrame]:
    """Map the arrays of a dataset, by name, and read its user and item tables.

    Args:
        path: the folder.
        listed: the files that its manifest lists.

    Raises:
        InputError: one of them is not listed or cannot be read, or they do not fit each other.
    """
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
    """Read a Parquet file that the library wrote.

    Args:
        path: the file.
        columns: the columns that it must have, among others.

    Raises:
        InputError: it cannot be read, or lacks one of them.
    """
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
    """Check that arrays fit each other and so many users and items, before any is an index.

    Raises:
        InputError: the first array that does not, and what is wrong with it.
    """

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
    wrong = (np.diff(cuts, axis=1, prepend=0, append=lengths[:, None]) < 0).any(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        refuse("cuts", f"must ascend from 0 to {lengths[row]}, not {cuts[row].tolist()}")
    for start in range(0, rows, _BLOCK):
        block = arrays["items"][start : start + _BLOCK]
        if block.min() < 0 or block.max() > items:
            token = block[(block < 0) | (block > items)][0]
            refuse("items", f"item tokens must be from 0 to {items}, not {token}")


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
    kept: Callable[[], Iterable[pl.DataFrame]] | None = None
    """Gives the kept columns of the interactions, in parts and in order, if there are any."""
    outside: pl.Series | None = None
    """The item ids of the interactions outside the catalogue, in order, if there are any. The
    arrays have PAD there, and an append may move such items into the catalogue."""


@dataclass(frozen=True)
class KnownIds:
    """The ids of a dataset that grows: they keep their order, and new ids follow them."""

    items: pl.Series
    """The catalogue: item token t remains ``items[t - 1]``."""
    users: pl.Series
    """The users, in the order of their rows."""


def dataset_fingerprint(settings: dict[str, object], contents: Contents) -> str:
    """Return the SHA-256 of the settings and the content of a dataset."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, array in sorted(contents.arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    for part in contents.kept() if contents.kept else ():
        digest.update(part.write_ndjson().encode())
    for _, table in sorted(contents.tables.items()):
        vectors = [name for name, dtype in table.schema.items() if is_vectors(dtype)]
        for rows in table.drop(vectors).iter_slices(_ROW_GROUP):
            digest.update(rows.write_ndjson().encode())
        for name in vectors:  # as text they would take minutes for a million items
            for array in _lists_as_arrays(table[name]):
                digest.update(f"{name} {array.dtype}".encode())
                digest.update(array.data)
    return digest.hexdigest()


def _lists_as_arrays(column: pl.Series) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lengths of lists of floats, -1 if missing, and their values; NaN if missing."""
    lists = as_lists(column)
    lengths = lists.list.len().cast(pl.Int64).fill_null(-1).to_numpy()
    values = lists.drop_nulls().explode().fill_null(float("nan")).to_numpy()
    return np.ascontiguousarray(lengths), np.ascontiguousarray(values)


def write_contents(folder: Path, contents: Contents, arrays: Path | None = None) -> dict[str, str]:
    """Write the arrays and tables of a dataset, and return the SHA-256 of each file.

    Args:
        folder: the folder.
        contents: what to write.
        arrays: the folder on the same disk that has the arrays already; they are moved.
    """
    for name, array in contents.arrays.items():
        file = f"{name}.npy"
        if arrays is not None:
            (arrays / file).rename(folder / file)
        else:
            np.save(folder / file, array, allow_pickle=False)
    for name, table in contents.tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    if contents.outside is not None:
        pl.DataFrame({"item_id": contents.outside}).write_parquet(folder / f"{OUTSIDE}.parquet")
    if contents.kept is not None:
        _write_in_groups(folder / f"{INTERACTIONS}.parquet", contents.kept())
    return folder_sha256(folder)


def _write_in_groups(path: Path, parts: Iterable[pl.DataFrame]) -> None:
    """Write a table in row groups of one size, so that the parts leave no trace in the file."""
    left = pl.DataFrame()
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for part, last in chain(((part, False) for part in parts), [(pl.DataFrame(), True)]):
            rows = pl.concat([frame for frame in (left, part) if frame.width], rechunk=False)
            whole = len(rows) if last else len(rows) // _ROW_GROUP * _ROW_GROUP
            for group in rows.head(whole).iter_slices(_ROW_GROUP):
                table = group.rechunk().to_arrow()
                if writer is None:
                    writer = pq.ParquetWriter(path, table.schema, compression="zstd")
                    stack.enter_context(writer)
                writer.write_table(table.combine_chunks(), row_group_size=_ROW_GROUP)
            left = rows[whole:]


def count_copies(
    *,
    items: NDArray[np.int32],
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    cuts: NDArray[np.int32],
) -> tuple[int, int]:
    """Count the interactions inside the catalogue that equal another one in user, item and time.

    The arrays are those of a dataset.

    Returns:
        Their number, and that of held-out ones which equal one of an earlier part.

    >>> log = {"items": [7, 7, 8], "timestamps": [1, 1, 2], "offsets": [0, 3], "cuts": [[1, 2, 3]]}
    >>> count_copies(**{name: np.array(values) for name, values in log.items()})
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
    arrays, tables = contents.arrays, contents.tables
    ends = arrays["cuts"].sum(axis=0, dtype=np.int64).tolist()
    return {
        "rows_read": len(arrays["items"]) + sum(dropped.values()),
        "interactions": len(arrays["items"]),
        "users": len(tables["users"]),
        "items": len(tables["items"]),
        "train": ends[0],
        "valid": ends[1] - ends[0],
        "test": ends[2] - ends[1],
        "outside_catalogue": int(np.count_nonzero(arrays["items"] == PAD)),
    }
