"""The arrays and tables of a prepared dataset, built from a filtered log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from recsys.config import Split
from recsys.data.entity_tables import as_lists, is_vectors
from recsys.data.histories import PAD
from recsys.data.splits import user_blocks
from recsys.folders.digests import folder_sha256

INTERACTIONS = "interactions"
"""The name of the table of kept columns."""

OUTSIDE = "outside"
"""The name of the table of items outside the catalogue."""

_ROW_GROUP = 1 << 18
"""Rows of a row group."""
_BLOCK = 1 << 20
"""Interactions that are read at a time."""


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
