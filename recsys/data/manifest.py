"""The folder of a prepared dataset: its manifest, and how its files are opened and checked."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from recsys.config.data import Columns
from recsys.config.section import Section
from recsys.data.histories import PAD, Int32s, Int64s
from recsys.data.splits import BLOCK, user_blocks
from recsys.folders.manifest import FolderManifest

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
ARRAYS = {"items": _INT32, "timestamps": _INT64, "offsets": _INT64, "cuts": _INT32}
"""The arrays of a prepared dataset, each in a file NAME.npy, and their types."""
INTERACTIONS, OUTSIDE = "interactions.parquet", "outside.parquet"
"""The kept columns; the items, with features, of interactions outside the catalogue; in order."""


class AppendedLog(Section):
    """A log that was appended to a dataset, when (UTC), and the dataset's fingerprint before."""

    source: str
    appended_at: str
    rows_read: int
    log_fingerprint: str
    fingerprint_before: str


class Manifest(FolderManifest):
    """The manifest of a prepared dataset."""

    noun: ClassVar[str] = "a prepared dataset"
    remedy: ClassVar[str] = "prepare the dataset again"

    format: Literal["recsys.prepared"] = "recsys.prepared"
    format_version: int = 3
    origin: str
    """The name or path of the log."""
    log_fingerprint: str
    """The SHA-256 of the rows of the first log, before any filter."""
    fingerprint: str
    """The SHA-256 of settings and content, whatever file the log came from."""
    settings: dict[str, Any]
    """The fields of DataConfig that determine the content."""
    columns: Columns
    """The names of the log's columns, which do not affect the content."""
    counts: dict[str, int]
    """The rows of the source (rows_read), the sizes of the dataset and of its parts."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """The number of dropped rows, by reason: they and the interactions are the rows read."""
    appended: tuple[AppendedLog, ...] = ()
    """The logs that were appended, the earliest first."""


def broken_rule(arrays: Mapping[str, NDArray[Any]], users: int, items: int) -> str:
    """Return how arrays do not fit each other, or so many users and items; empty if they do."""
    rows, offsets, cuts = arrays["items"].size, arrays["offsets"], arrays["cuts"]
    shapes = {"items": (rows,), "timestamps": (rows,), "offsets": (users + 1,), "cuts": (users, 3)}
    for name, dtype in ARRAYS.items():
        actual = arrays[name].dtype, arrays[name].shape
        if actual != (dtype, shapes[name]):
            return f"{name}.npy: must be {dtype} {shapes[name]}, not {actual[0]} {actual[1]}"
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != rows or (lengths < 0).any():
        return f"offsets.npy: must ascend from 0 to {rows}"
    if (np.diff(cuts, axis=1, prepend=0, append=lengths[:, None]) < 0).any():
        return "cuts.npy: must ascend from 0 to the number of the user's interactions"
    blocks = (arrays["items"][start : start + BLOCK] for start in range(0, rows, BLOCK))
    if any(block.min() < 0 or block.max() > items for block in blocks):
        return f"items.npy: item tokens must be from 0 to {items}"
    return ""


def count_copies(
    items: Int32s, timestamps: Int64s, offsets: Int64s, cuts: Int32s
) -> tuple[int, int]:
    """Count interactions of the catalogue that equal another in user, item and time.

    Returns their number, and that of held-out ones which equal one of an earlier part.
    """
    keys, copies, across = ("user", "item", "time"), 0, 0
    for low, high in user_blocks(offsets):
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
