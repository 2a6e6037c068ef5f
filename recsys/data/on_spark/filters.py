"""The filters of a log in Spark: by times and duplicates, then items and users by their counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import narwhals as nw
import numpy as np

from recsys.config import DataConfig
from recsys.data.log import Frame, nobody_left, row_steps, with_at_least
from recsys.data.on_disk.filters import FilteredLog
from recsys.data.on_spark.sorted_rows import (
    SortedRows,
    count_written,
    read_written,
    write_sorted,
)
from recsys.data.on_spark.source import column, url_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def filter_rows(rows: SortedRows, config: DataConfig, origin: str, folder: Path) -> FilteredLog:
    """Drop rows as `recsys.data.log.filter_log` does, and count them.

    After each filter that may drop rows, the numbers of those left are written: what is computed
    is computed once, and the plan of Spark stays short however many rounds a core takes.

    Raises:
        InputError: no user is left.
    """
    log = rows.log
    left, dropped = log.rows, dict[str, int]()
    frame: Frame = nw.from_native(rows.frame.select("user_id", "item_id", "timestamp", "order"))
    written = 0

    def keep(reason: str, kept: Frame) -> None:
        nonlocal frame, left, written
        if kept is frame:
            return
        native: DataFrame = nw.to_native(kept)
        path = folder / f"kept-{written}"
        native.write.parquet(url_of(path))
        frame, written = nw.from_native(read_written(native, path)), written + 1
        before, left = left, count_written(path)
        if before > left:
            dropped[reason] = dropped.get(reason, 0) + before - left

    for reason, step in row_steps(config):
        keep(reason, step(frame))
    while True:
        before = left
        for role in ("item_id", "user_id"):
            name = f"min_{role.removesuffix('_id')}_interactions"
            keep(name, with_at_least(frame, role, getattr(config, name)))
        if left == before or not config.k_core:
            break
    users, items = len(log.user_ids), len(log.item_ids)
    if not left:
        raise nobody_left(config, origin, log.rows, users, items)
    if left < log.rows:
        numbers = nw.to_native(frame).select("order")
        chosen = rows.frame.join(numbers, "order", "left_semi")
        chosen = chosen.select(*map(column, rows.frame.columns))
        _, files = write_sorted(chosen, folder / "filtered")
        log = replace(log, files=files, rows=left)
    return FilteredLog(log, np.ones(users, np.bool_), np.ones(items, np.bool_), dropped)
