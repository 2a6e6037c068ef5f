"""The filters of a log in Spark: by times and duplicates, then items and users by their counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import narwhals as nw
import numpy as np

from recsys.config import DataConfig
from recsys.data.log import Frame, filter_frame, nobody_left
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
    paths = (folder / f"kept-{number}" for number in count())

    def written(kept: Frame) -> tuple[Frame, int]:
        native: DataFrame = nw.to_native(kept)
        path = next(paths)
        native.write.parquet(url_of(path))
        return nw.from_native(read_written(native, path)), count_written(path)

    numbered = nw.from_native(rows.frame.select("user_id", "item_id", "timestamp", "order"))
    frame, left, dropped = filter_frame(numbered, log.rows, config, written)
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
