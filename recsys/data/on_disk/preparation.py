"""How a log that is larger than memory becomes the arrays of a dataset."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import polars as pl

from recsys.config import DataConfig
from recsys.data.arrays import PreparedLog
from recsys.data.on_disk.arrays import write_parts
from recsys.data.on_disk.filters import filter_sorted
from recsys.data.on_disk.sorted_log import sort_log, split_sorted_sessions
from recsys.data.on_disk.staging import stage_log
from recsys.data.reading import settle, sum_counts
from recsys.data.row_rules import rule_columns
from recsys.data.source_files import find_files
from recsys.data.sources import find_named_dataset
from recsys.data.splits import SplitChoice
from recsys.data.tables import TableSource, open_table
from recsys.data.where import reads_rows_alone
from recsys.progress import stage

logger = logging.getLogger(__name__)

_BYTES_PER_VALUE = 64
"""What a value of a log takes while all of it is prepared in memory: measured 50 to 70 bytes for
ids of 7 to 9 letters and times."""
_AT_ONCE = 4
"""How many parts of a log may be in memory at once: those that polars reads ahead, and copies."""
_COMPRESSION = 40
"""What a byte of a compressed file takes in memory, if it was a tenth of a text."""


def exceeds_memory(source: TableSource, config: DataConfig, memory: int) -> bool:
    """Return whether a log would take more memory than allowed, if it was prepared at once.

    Raises:
        InputError: the source cannot be read.
    """
    if isinstance(source, str) and find_named_dataset(source) is not None:
        return False
    if isinstance(source, str | os.PathLike):
        packed = [file.path for file in find_files(source) if file.compression is not None]
        if size := sum(path.stat().st_size for path in packed):
            return size * _COMPRESSION > memory
    table = open_table(source, header=config.header, encoding=config.encoding)
    return table.count() * row_size(config, table.names, table.origin) > memory


def prepare_on_disk(
    source: TableSource,
    config: DataConfig,
    folder: Path,
    memory: int,
    items: pl.DataFrame | None = None,
    users: pl.DataFrame | None = None,
    choose_split: SplitChoice | None = None,
) -> PreparedLog | None:
    """Prepare a log within a bound of memory, to the bytes that it would have without one.

    Besides the parts of the log, memory holds the ids of all users and items, and seven numbers
    per user.

    Args:
        source: a file, a folder, a pattern or a frame.
        config: how to read and prepare it.
        folder: an empty folder beside the dataset for intermediate files and the arrays.
        memory: bytes.
        items: item_id and features, if there are any.
        users: user_id and features, if there are any.
        choose_split: see `recsys.data.arrays.build_arrays`.

    Returns:
        None if ``where`` compares a row with others, such as an average: that needs all rows.

    Raises:
        InputError: the log or a table is invalid.
    """
    unpacked, staging, arrays = (folder / name for name in ("unpacked", "staged", "arrays"))
    for path in (unpacked, staging, arrays):
        path.mkdir()
    table = open_table(source, header=config.header, encoding=config.encoding, unpacked=unpacked)
    if config.where is not None and not reads_rows_alone(config.where, table.names, table.origin):
        return None
    table.warn_of_swallowed_rows()
    columns, config = settle(table, config)
    size = row_size(config, table.names, table.origin)
    part_rows = max(1, memory // (size * _AT_ONCE))
    with stage(f"preparing {table.origin}", 4 * table.count()) as progress:
        staged = stage_log(table, config, columns, staging, part_rows, progress)
        log = sort_log(staged, folder, part_rows, progress)
        fingerprint = log.fingerprint()
        if config.session_gap is not None:
            log = split_sorted_sessions(log, config.session_gap, folder / "sessions", part_rows)
        filtered = filter_sorted(log, config, table.origin)
        given = filtered, items, users, config, columns, table.origin
        contents = write_parts(arrays, *given, progress, choose_split)
    dropped = sum_counts(staged.dropped, filtered.dropped)
    form = config.time_format
    return PreparedLog(table.origin, columns, fingerprint, dropped, contents, arrays, form)


def row_size(config: DataConfig, names: tuple[str, ...], origin: str) -> int:
    """Return the bytes that a row takes in memory."""
    columns = 3 + len(config.keep) + len(rule_columns(config, names, origin))
    return columns * _BYTES_PER_VALUE
