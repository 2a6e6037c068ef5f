"""How a log becomes the folder of a prepared dataset: open, check, filter, order, cut, write."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
from narwhals.exceptions import NarwhalsError

from recsys.config import Backtest, DataConfig
from recsys.data.database import in_one_line, memory_setting
from recsys.data.database import name as quoted
from recsys.data.entity_tables import feature_tables
from recsys.data.frames import readable_again
from recsys.data.histories import PAD, Bools, Int32s, Int64s
from recsys.data.log import BLOCK, KEPT, Log, filter_log, read_log, settle
from recsys.data.manifest import (
    AppendedLog,
    Contents,
    Manifest,
    count_copies,
    count_rows,
    dataset_fingerprint,
    write_contents,
)
from recsys.data.sources import Engine, find_named_dataset, is_spark_frame, read_named
from recsys.data.spark import spark_table
from recsys.data.splits import SplitChoice, cut_points, folds, user_blocks
from recsys.data.tables import OpenTable, TableSource, open_table, read_table
from recsys.data.times import units_in
from recsys.errors import InputError
from recsys.folders.atomic import new_folder, work_folder
from recsys.folders.locks import sole_use
from recsys.progress import stage

logger = logging.getLogger(__name__)

PATIENCE = 600
"""Seconds to wait for another process that prepares the same folder, often with the same data."""
_NO_CONTENT = {"source", "mirror", "columns", "header", "encoding", "time_format"}
"""The settings that say where a log is and how it is written, not what is in the dataset."""


def write_dataset(
    source: TableSource,
    config: DataConfig,
    out: Path,
    items: TableSource | None = None,
    users: TableSource | None = None,
    memory: int | str | None = None,
    engine: Engine | None = None,
    *,
    choose_split: SplitChoice | None = None,
) -> None:
    """Write a prepared dataset, unless it is there already; see `recsys.data.prepared.prepare`.

    Raises:
        InputError: the log, a table or the folder is invalid; nothing is written then.
    """
    if engine not in (None, "spark"):
        raise InputError(f"engine: must be spark or left out, not {engine!r}")
    Manifest.previous(out)  # anything else at the path is refused before the work
    user_table = read_features(users, config, "the user table")
    item_table = read_features(items, config, "the item table")
    with work_folder(out) as folder:
        table, named_items, config = open_log(
            source, config, folder, memory_setting(memory), engine
        )
        name = table.origin
        with in_one_line(name), stage(f"preparing {name}", 4, even=False) as progress:
            progress.say("reading")
            columns, settled = settle(table, config)
            log = read_log(table, settled, columns)
            progress.advance()
            progress.say("filtering")
            filter_log(log, settled)
            progress.advance()
            progress.say("writing")
            features = item_table if items is not None else named_items
            contents = build(
                log, settled, folder / "arrays", features, user_table, choose_split=choose_split
            )
            progress.advance()
            manifest = describe(log, contents, settled)
            with sole_use(out, "prepares it", PATIENCE):
                previous = Manifest.load_if_valid(out)
                if previous is None or not manifest.has_same_content(previous):
                    _warn_of_lost_logs(previous, log.origin, out)
                    put_in_place(contents, manifest, out, folder / "arrays")


# --- Open -----------------------------------------------------------------------------------------


def open_log(
    source: TableSource,
    config: DataConfig,
    folder: Path | None,
    memory: int | None = None,
    engine: Engine | None = None,
) -> tuple[OpenTable, pl.DataFrame | None, DataConfig]:
    """Open a log by the name of its dataset, a path or a frame; the folder is for what spills.

    Returns:
        The log; the item table of named datasets that have one; the settings, with the columns of
        a named dataset.

    Raises:
        InputError: no such dataset or file, or it cannot be read.
    """
    dataset = find_named_dataset(source) if isinstance(source, str) else None
    if dataset is not None and engine is not None:
        raise InputError(f"{source}: a named dataset fits in memory: leave out engine={engine!r}")
    if engine is not None or is_spark_frame(source):
        if folder is None:
            raise InputError(f"engine={engine!r}: needs a folder")
        return spark_table(source, config, folder, memory), None, config
    if dataset is None:
        options: dict[str, Any] = {"header": config.header, "encoding": config.encoding}
        return open_table(source, **options, work=folder, memory=memory), None, config
    rows, items = read_named(dataset, config.mirror)
    columns = config.columns or dataset.columns
    table = open_table(rows, dataset.name, work=folder, memory=memory)
    return table, items, config.model_copy(update={"columns": columns})


def read_features(
    table: TableSource | None, config: DataConfig, origin: str
) -> pl.DataFrame | None:
    """Return the table of items or users that belongs to a log; None if there is none."""
    return None if table is None else read_table(table, origin=origin, encoding=config.encoding)


def held(table: TableSource) -> TableSource:
    """Return a table that can be read more than once; a bad one is refused where it is opened."""
    try:
        return table if isinstance(table, str | os.PathLike) else readable_again(table)
    except (pl.exceptions.PolarsError, pa.ArrowException, NarwhalsError):
        return table


def fold_configs(config: DataConfig) -> tuple[DataConfig, ...]:
    """Return the settings of each fold's dataset, the earliest first.

    Raises:
        InputError: the split is not a backtest, or the log cannot be read or cut.
    """
    split = config.split
    if not isinstance(split, Backtest):
        raise InputError(f"data.split: must be of kind backtest, not {split.kind}")
    times = np.empty(0, dtype=np.int64)
    if not split.cuts:
        table, _, config_of_log = open_log(config.source, config, None)
        columns, settled = settle(table, config_of_log)
        times = read_log(table, settled, columns).table()["timestamp"].to_numpy()
    return tuple(config.model_copy(update={"split": fold}) for fold in folds(split, times))


# --- Order, cut, number ---------------------------------------------------------------------------


def build(
    log: Log,
    config: DataConfig,
    folder: Path,
    items: pl.DataFrame | None,
    users: pl.DataFrame | None,
    num_known: int = 0,
    choose_split: SplitChoice | None = None,
) -> Contents:
    """Write the arrays of a dataset into a new folder, block by block, and return its contents.

    The catalogue consists of the items of training and validation interactions, and of the first
    ``num_known`` ones, in the order of their numbers in the log. Memory holds the ids of all users
    and items, and seven numbers per user.

    Raises:
        InputError: the split does not fit the log, or a table has none of its items or users.
    """
    folder.mkdir()
    spans = log.frame(
        "select user_id, n from (select u, count(*) as n from log group by u) "
        "join users using (u) order by u"
    )
    offsets = np.concatenate([[0], np.cumsum(spans["n"].to_numpy().astype(np.int64))])
    numbers = _new_array(folder / "items.npy", log.rows, np.int32)  # of the log's items, for now
    times = _new_array(folder / "timestamps.npy", log.rows, np.int64)
    at = 0
    for block in log.blocks("select i, timestamp from log order by ord"):
        span = slice(at, at + len(block))
        numbers[span], times[span] = block["i"].to_numpy(), block["timestamp"].to_numpy()
        at += len(block)
    split = (choose_split and choose_split(times, offsets)) or config.split
    cuts = cut_points(split, times, offsets)
    item_ids = log.ids("item_id")
    inside = _items_before_test(numbers, offsets, cuts, len(item_ids))
    inside[:num_known] = True
    outside = _encode(numbers, inside)
    for mapped in (numbers, times):
        mapped.flush()
    for name, array in (("offsets", offsets), ("cuts", cuts)):
        np.save(folder / f"{name}.npy", array, allow_pickle=False)

    def kept() -> Iterator[pl.DataFrame]:
        chosen = ", ".join(quoted(KEPT + column) for column in log.keep)
        for block in log.blocks(f"select {chosen} from log order by ord"):
            yield block.rename(lambda column: column.removeprefix(KEPT))

    catalogue = item_ids.filter(pl.Series(inside))
    return Contents(
        arrays={"items": numbers, "timestamps": times, "offsets": offsets, "cuts": cuts},
        tables=feature_tables(
            spans["user_id"], catalogue, users, items, config, log.columns, log.origin
        ),
        split=split,
        kept=kept if log.keep else None,
        outside=item_ids.gather(outside).alias("item_id"),
    )


def _new_array(path: Path, rows: int, dtype: type[np.generic]) -> np.memmap[Any, Any]:
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(rows,))
    if hasattr(os, "posix_fallocate"):  # a full disk would end the process at a write later
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _items_before_test(numbers: Int32s, offsets: Int64s, cuts: Int32s, items: int) -> Bools:
    """Return which items occur in training or validation [items]."""
    inside = np.zeros(items, dtype=np.bool_)
    for low, high in user_blocks(offsets, BLOCK):
        start, end = int(offsets[low]), int(offsets[high])
        ends = np.repeat(offsets[low:high] + cuts[low:high, 1], np.diff(offsets[low : high + 1]))
        inside[numbers[start:end][np.arange(start, end) < ends]] = True
    return inside


def _encode(numbers: Int32s, inside: Bools) -> Int32s:
    """Replace the numbers of items by tokens, or PAD; return the numbers that became PAD."""
    tokens = np.where(inside, np.cumsum(inside), PAD).astype(np.int32)
    outside = [np.empty(0, dtype=np.int32)]
    for low in range(0, len(numbers), BLOCK):
        block = np.array(numbers[low : low + BLOCK])
        numbers[low : low + BLOCK] = tokens[block]
        outside.append(block[~inside[block]])
    return np.concatenate(outside)


# --- Write ----------------------------------------------------------------------------------------


def describe(
    log: Log, contents: Contents, config: DataConfig, appended: tuple[AppendedLog, ...] = ()
) -> Manifest:
    """Return the manifest of a dataset, without its files; warn of what distorts metrics."""
    config = config.model_copy(update={"split": contents.split, "time_format": log.time_format})
    settings = config.model_dump(mode="json", exclude={"source", "mirror", "columns"})
    content = {key: value for key, value in settings.items() if key not in _NO_CONTENT}
    counts = count_rows(log.dropped, contents)
    _warn(log, contents, counts["valid"] + counts["test"])
    return Manifest(
        origin=log.origin,
        log_fingerprint=log.fingerprint,
        fingerprint=dataset_fingerprint(content, contents),
        settings=settings,
        columns=log.columns,
        ordered_by=log.ordered_by,
        counts=counts,
        dropped=dict(log.dropped),
        files={},
        appended=appended,
    )


def put_in_place(contents: Contents, manifest: Manifest, out: Path, arrays: Path) -> None:
    """Write a dataset into a new folder that takes the place of what is there."""
    with new_folder(out) as folder:
        files = write_contents(folder, contents, arrays)
        manifest.model_copy(update={"files": files}).write(folder)


def _warn(log: Log, contents: Contents, held_out: int) -> None:
    """Warn of times in two units and of copies across the cuts."""
    if len(units := units_in(contents.arrays["timestamps"])) > 1:
        logger.warning(
            "%s: column %r has times %s: they are compared as numbers, so that all of one unit "
            "come before all of another: bring them to one unit",
            *(log.origin, log.columns.timestamp),
            " and ".join(f"in {unit}, such as {time}" for unit, time in units.items()),
        )
    _, across = count_copies(**contents.arrays)
    if across:
        logger.warning(
            "%s: %s of %s held-out interactions (%.1f%%) are copies, in user, item and time, "
            "of earlier ones, which a model has seen: --set data.duplicates=drop_exact drops them "
            "(in Python duplicates='drop_exact')",
            *(log.origin, f"{across:,}", f"{held_out:,}", 100 * across / held_out),
        )


def _warn_of_lost_logs(previous: Manifest | None, origin: str, out: Path) -> None:
    if previous is not None and previous.appended:
        logger.warning(
            "%s: had grown by %d appended logs, the last from %s: it is replaced by %s alone",
            *(out, len(previous.appended), previous.appended[-1].source, origin),
        )
