"""The folder of a prepared dataset: its manifest, and its files, checked when they are opened."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from recsys.config import Columns, Section
from recsys.errors import InputError
from recsys.folders.manifest import MANIFEST, FolderManifest

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_DTYPES = {"items": _INT32, "timestamps": _INT64, "offsets": _INT64, "cuts": _INT32}
_BLOCK = 1 << 22
"""Entries that are checked at a time, so that a memory-mapped array is not held as a whole."""


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
    """Sizes of the log and of the dataset; see `recsys.data.arrays.count_rows`."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """The number of dropped rows of the source, by reason: those of data.drop, the names of the
    settings that drop rows, and blank rows. They and the interactions add up to the rows read."""
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
