"""The filters of a log on disk: rows file by file, then items and users by their counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import DataConfig
from recsys.data.log import nobody_left, row_steps
from recsys.data.on_disk.sorted_log import SortedLog, replace_file


@dataclass(frozen=True)
class FilteredLog:
    """The rows of a sorted log whose user and item are kept."""

    log: SortedLog
    users: NDArray[np.bool_]
    """Shape [users of the log]: which of them are kept."""
    items: NDArray[np.bool_]
    """Shape [items of the log]."""
    dropped: dict[str, int]
    """The number of dropped rows, by reason."""

    def parts(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of each file that are kept."""
        for part in self.log.parts():
            kept = self.users[part["user_id"].to_numpy()] & self.items[part["item_id"].to_numpy()]
            yield part if kept.all() else part.filter(pl.Series(kept))


def filter_sorted(log: SortedLog, config: DataConfig, origin: str) -> FilteredLog:
    """Drop rows as `recsys.data.log.filter_log` does, and count them.

    Raises:
        InputError: no user is left.
    """
    rows, dropped = _filter_files(log, config)
    found = FilteredLog(
        replace(log, rows=rows),
        np.ones(len(log.user_ids), dtype=np.bool_),
        np.ones(len(log.item_ids), dtype=np.bool_),
        dropped,
    )
    minimums = {"item_id": config.min_item_interactions, "user_id": config.min_user_interactions}
    while True:
        before = rows
        for column, minimum in minimums.items():
            if minimum == 1:
                continue
            kept = found.items if column == "item_id" else found.users
            sizes = np.zeros(len(kept), dtype=np.int64)
            for part in found.parts():
                sizes += np.bincount(part[column].to_numpy(), minlength=len(kept))
            kept &= sizes >= minimum
            if lost := int(sizes[~kept].sum()):
                name = f"min_{column.removesuffix('_id')}_interactions"
                dropped[name] = dropped.get(name, 0) + lost
                rows -= lost
        if rows == before or not config.k_core:
            break
    if not rows:
        users, items = len(log.user_ids), len(log.item_ids)
        raise nobody_left(config, origin, log.rows, users, items)
    return found


def _filter_files(log: SortedLog, config: DataConfig) -> tuple[int, dict[str, int]]:
    """Filter the rows of each file by times and duplicates; return how many are left and gone."""
    left, gone = 0, dict[str, int]()
    for file, part in zip(log.files, log.parts(), strict=True):
        rows = part.with_row_index("order")
        for reason, step in row_steps(config):
            before = len(rows)
            kept = nw.to_native(step(nw.from_native(rows.lazy())))
            rows = kept.collect().sort("order")
            gone[reason] = gone.get(reason, 0) + before - len(rows)
        left += len(rows)
        if len(rows) < len(part):
            replace_file(file, rows.drop("order"))
    return left, {reason: count for reason, count in gone.items() if count}
