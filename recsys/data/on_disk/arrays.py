"""The arrays and tables of a dataset, written part by part into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import Columns, DataConfig
from recsys.data.arrays import Contents
from recsys.data.entity_tables import feature_tables
from recsys.data.histories import PAD
from recsys.data.log import KEPT
from recsys.data.on_disk.filters import FilteredLog
from recsys.data.splits import SplitChoice, chosen_cuts, user_blocks
from recsys.progress import Stage

_BLOCK = 1 << 20


def write_parts(
    folder: Path,
    filtered: FilteredLog,
    items: pl.DataFrame | None,
    users: pl.DataFrame | None,
    config: DataConfig,
    columns: Columns,
    origin: str,
    stage: Stage,
    choose_split: SplitChoice | None = None,
) -> Contents:
    """Write the arrays of a dataset into a folder; see `recsys.data.arrays.build_arrays`.

    Raises:
        InputError: the split does not fit the log, or a table has none of its items or users.
    """
    lengths = np.zeros(len(filtered.users), dtype=np.int64)
    for part in filtered.parts():
        lengths += np.bincount(part["user_id"].to_numpy(), minlength=len(lengths))
    present = lengths > 0
    offsets = np.concatenate([[0], np.cumsum(lengths[present])])
    rows = int(offsets[-1])
    tokens = _new_array(folder / "items.npy", rows, np.int32)
    times = _new_array(folder / "timestamps.npy", rows, np.int64)
    at = 0
    for part in filtered.parts():
        span = slice(at, at + len(part))
        tokens[span] = part["item_id"].to_numpy()  # numbers of the log's items for now
        times[span] = part["timestamp"].to_numpy()
        at += len(part)
        stage.advance(len(part))
    split, cuts = chosen_cuts(config.split, choose_split, times, offsets)
    known = np.zeros(len(filtered.items), dtype=np.bool_)
    for low, high in user_blocks(offsets, _BLOCK):
        lasts = offsets[low:high] + cuts[low:high, 1]
        start, end = int(offsets[low]), int(offsets[high])
        inside = np.arange(start, end) < np.repeat(lasts, np.diff(offsets[low : high + 1]))
        known[tokens[start:end][inside]] = True
    token_of = np.where(known, np.cumsum(known), PAD).astype(np.int32)
    outside = [np.empty(0, dtype=np.int32)]
    for low in range(0, rows, _BLOCK):
        numbers = np.array(tokens[low : low + _BLOCK])
        outside.append(numbers[~known[numbers]])
        tokens[low : low + _BLOCK] = token_of[numbers]
    for mapped in (tokens, times):
        mapped.flush()
    arrays: dict[str, NDArray[Any]] = {
        "items": tokens,
        "timestamps": times,
        "offsets": offsets,
        "cuts": cuts,
    }
    for name in ("offsets", "cuts"):
        np.save(folder / f"{name}.npy", arrays[name], allow_pickle=False)
    catalogue = filtered.log.item_ids.filter(pl.Series(known))
    user_ids = filtered.log.user_ids.filter(pl.Series(present))
    tables = feature_tables(user_ids, catalogue, users, items, config, columns, origin)
    kept = _kept(filtered, config) if config.keep else None
    unlisted = filtered.log.item_ids.gather(np.concatenate(outside))
    return Contents(arrays, tables, split, kept, unlisted if len(unlisted) else None)


def _kept(filtered: FilteredLog, config: DataConfig) -> Callable[[], Iterator[pl.DataFrame]]:
    def parts() -> Iterator[pl.DataFrame]:
        for part in filtered.parts():
            yield part.select(pl.col(KEPT + name).alias(name) for name in config.keep)

    return parts


def _new_array(path: Path, rows: int, dtype: type[np.generic]) -> np.memmap[Any, Any]:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(rows,))
