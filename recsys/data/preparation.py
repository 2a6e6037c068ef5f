"""How a log becomes the folder of a prepared dataset: open, check, filter, order, cut, write."""

import filecmp
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pydantic import Field

from recsys.config.data import Backtest, Columns, DataConfig
from recsys.config.section import Section
from recsys.data.database import in_one_line, memory_setting
from recsys.data.database import name as quoted
from recsys.data.entity_tables import as_lists, is_vectors, user_of_session, with_features
from recsys.data.histories import PAD, Bools, Int32s, Int64s
from recsys.data.log import KEPT, Log, filter_log, read_log
from recsys.data.sources import find_named_dataset, read_named
from recsys.data.spark import is_spark_frame, spark_table
from recsys.data.splits import BLOCK, SplitChoice, cut_points, folds, user_blocks
from recsys.data.tables import OpenTable, TableSource, open_table, read_table
from recsys.data.times import units_in
from recsys.errors import InputError
from recsys.folders import FolderManifest, new_folder, sole_use, work_folder
from recsys.progress import stage

logger = logging.getLogger(__name__)

INTERACTIONS, OUTSIDE = "interactions.parquet", "outside.parquet"
"""The kept columns; the items, with features, of interactions outside the catalogue; in order."""
PATIENCE = 600
"""Seconds to wait for another process that prepares the same folder, often with the same data."""
_NO_CONTENT = {"source", "columns", "header", "encoding", "time_format"}
"""The settings that say where a log is and how it is written, not what is in the dataset."""
_ROW_GROUP = 1 << 18
"""Rows that are written, or become text for the fingerprint, at a time."""


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


def write_dataset(
    source: TableSource,
    config: DataConfig,
    out: Path,
    items: TableSource | None = None,
    users: TableSource | None = None,
    memory: int | str | None = None,
    *,
    choose_split: SplitChoice | None = None,
) -> None:
    """Write a prepared dataset, unless it is there already; see `recsys.data.prepared.prepare`."""
    Manifest.previous(out)  # anything else at the path is refused before the work
    user_table = read_features(users, config, "the user table")
    item_table = read_features(items, config, "the item table")
    with work_folder(out) as folder:
        table, named_items, config = open_log(source, config, folder, memory_setting(memory))
        name = table.origin
        with in_one_line(name), stage(f"preparing {name}") as progress:
            progress.say("reading")
            log = read_log(table, config)
            progress.say("filtering")
            filter_log(log, config)
            progress.say("writing")
            features = item_table if items is not None else named_items
            files = folder / "files"
            manifest = build(log, config, files, features, user_table, choose_split=choose_split)
            with sole_use(out, "prepares it", PATIENCE):
                if not _is_there(manifest, files, out):
                    put_in_place(manifest, files, out)


def _is_there(manifest: Manifest, files: Path, out: Path) -> bool:
    """Return whether a folder holds this dataset, and what an append needs beside it, intact."""
    previous = Manifest.previous(out)
    names = ("fingerprint", "log_fingerprint", "settings", "columns", "counts", "dropped")
    if previous is None or any(getattr(manifest, n) != getattr(previous, n) for n in names):
        return False
    try:
        previous.verify(out)
    except InputError:
        return False
    return not filecmp.cmpfiles(files, out, [OUTSIDE], shallow=False)[1]


def put_in_place(manifest: Manifest, files: Path, out: Path) -> None:
    """Let the files of a dataset, and its manifest, take the place of what is there."""
    with new_folder(out) as folder:
        for file in files.iterdir():
            file.rename(folder / file.name)
        manifest.write(folder)


# --- Open -----------------------------------------------------------------------------------------


def open_log(
    source: TableSource, config: DataConfig, folder: Path | None, memory: int | None = None
) -> tuple[OpenTable, pl.DataFrame | None, DataConfig]:
    """Open a log by the name of its dataset, a path or a frame; the folder is for what spills.

    Returns the log, and of a named dataset the item table, and its columns in the settings.
    """
    dataset = find_named_dataset(source) if isinstance(source, str) else None
    if folder is not None and is_spark_frame(source):
        frame: Any = source
        return spark_table(frame, config, folder, memory), None, config
    if dataset is None:
        options: dict[str, Any] = {"header": config.header, "encoding": config.encoding}
        return open_table(source, **options, work=folder, memory=memory), None, config
    rows, items = read_named(dataset)
    columns = config.columns or dataset.columns
    table = open_table(rows, dataset.name, work=folder, memory=memory)
    return table, items, config.model_copy(update={"columns": columns})


def read_features(
    table: TableSource | None, config: DataConfig, origin: str
) -> pl.DataFrame | None:
    """Return the table of items or users that belongs to a log; None if there is none."""
    return None if table is None else read_table(table, origin=origin, encoding=config.encoding)


def fold_configs(config: DataConfig) -> tuple[DataConfig, ...]:
    """Return the settings of each fold's dataset, the earliest first."""
    split = config.split
    if not isinstance(split, Backtest):
        raise InputError(f"data.split: must be of kind backtest, not {split.kind}")
    times = np.empty(0, dtype=np.int64)
    if not split.cuts:
        table, _, config_of_log = open_log(config.source, config, None)
        log = read_log(table, config_of_log)
        filter_log(log, DataConfig(since=config.since))
        times = log.table()["timestamp"].to_numpy()
    return tuple(config.model_copy(update={"split": fold}) for fold in folds(split, times))


# --- Order, cut, number, write --------------------------------------------------------------------


def build(
    log: Log,
    config: DataConfig,
    folder: Path,
    items: pl.DataFrame | None,
    users: pl.DataFrame | None,
    num_known: int = 0,
    appended: tuple[AppendedLog, ...] = (),
    choose_split: SplitChoice | None = None,
) -> Manifest:
    """Write the files of a dataset into a new folder, block by block, and return its manifest.

    The catalogue consists of the items of training and validation interactions, and of the first
    ``num_known`` ones, in the order of their numbers in the log. Memory holds the ids of all users
    and items, and seven numbers per user. A split or a table that does not fit is refused.
    """
    folder.mkdir()
    spans = log.frame(
        "select user_id, n from (select u, count(*) as n from log group by u) "
        "join users using (u) order by u"
    )
    offsets = np.concatenate([[0], np.cumsum(spans["n"].to_numpy().astype(np.int64))])
    numbers, times = _write_interactions(log, folder)
    split = (choose_split and choose_split(times, offsets)) or config.split
    cuts = cut_points(split, times, offsets)
    item_ids = log.frame("from items order by i")["item_id"]
    inside = np.arange(len(item_ids)) < num_known
    for low, high in user_blocks(offsets):  # which items occur before the test part
        start, end = int(offsets[low]), int(offsets[high])
        ends = np.repeat(offsets[low:high] + cuts[low:high, 1], np.diff(offsets[low : high + 1]))
        inside[numbers[start:end][np.arange(start, end) < ends]] = True
    outside = _encode(numbers, inside)
    arrays: dict[str, NDArray[Any]] = {"items": numbers, "timestamps": times}
    arrays |= {"offsets": offsets, "cuts": cuts}
    for name in ("offsets", "cuts"):
        np.save(folder / f"{name}.npy", arrays[name], allow_pickle=False)
    user_ids, columns = spans["user_id"], log.columns
    people = user_ids if config.session_gap is None else user_of_session(user_ids)
    every_item = with_features(item_ids, item_ids, items, columns.item_id, log.origin)
    tables = {
        "users": with_features(user_ids, people, users, columns.user_id, log.origin),
        "items": every_item.filter(pl.Series(inside)),
    }
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    if len(outside):  # which an append may move into the catalogue
        every_item[outside].write_parquet(folder / OUTSIDE)
    config = config.model_copy(update={"split": split, "time_format": log.time_format})
    settings = config.model_dump(mode="json", exclude={"source", "columns"})
    content = {key: value for key, value in settings.items() if key not in _NO_CONTENT}
    train, valid, test = np.diff(cuts.sum(axis=0, dtype=np.int64), prepend=0).tolist()
    _warn(log, arrays, valid + test)
    return Manifest(
        origin=log.origin,
        log_fingerprint=log.fingerprint,
        fingerprint=_fingerprint(content, arrays, tables, folder),
        settings=settings,
        columns=log.columns,
        counts={
            "rows_read": log.rows + sum(log.dropped.values()),
            "interactions": log.rows,
            "users": len(spans),
            "items": int(inside.sum()),
            "train": train,
            "valid": valid,
            "test": test,
            "outside_catalogue": len(outside),
        },
        dropped=dict(log.dropped),
        appended=appended,
    )


def _write_interactions(log: Log, folder: Path) -> tuple[Int32s, Int64s]:
    """Write the numbers of items, times and kept columns of a log in order; map the first two."""
    numbers = _new_array(folder / "items.npy", log.rows, np.int32)
    times = _new_array(folder / "timestamps.npy", log.rows, np.int64)
    at = 0
    for block in log.blocks("select i, timestamp from log"):
        span = slice(at, at + len(block))
        numbers[span], times[span] = block["i"].to_numpy(), block["timestamp"].to_numpy()
        at += len(block)
    times.flush()
    if log.keep:
        kept = ", ".join(f"{quoted(KEPT + column)} as {quoted(column)}" for column in log.keep)
        reader = log.connection.sql(f"select {kept} from log").to_arrow_reader(_ROW_GROUP)
        with pq.ParquetWriter(folder / INTERACTIONS, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
    return numbers, times


def _new_array(path: Path, rows: int, dtype: type[np.generic]) -> np.memmap[Any, Any]:
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(rows,))
    if hasattr(os, "posix_fallocate"):  # a full disk would end the process at a write later
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _encode(numbers: Int32s, inside: Bools) -> Int32s:
    """Replace the numbers of items by tokens, or PAD; return the numbers that became PAD."""
    tokens = np.where(inside, np.cumsum(inside), PAD).astype(np.int32)
    outside = [np.empty(0, dtype=np.int32)]
    for low in range(0, len(numbers), BLOCK):
        block = np.array(numbers[low : low + BLOCK])
        numbers[low : low + BLOCK] = tokens[block]
        outside.append(block[~inside[block]])
    numbers.flush()  # type: ignore[attr-defined]
    return np.concatenate(outside)


def _fingerprint(
    settings: Mapping[str, object],
    arrays: Mapping[str, NDArray[Any]],
    tables: Mapping[str, pl.DataFrame],
    folder: Path,
) -> str:
    """Return the SHA-256 of the settings and the content of a dataset."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())

    def update(name: str, array: NDArray[Any], shape: object = "") -> None:
        digest.update(f"{name} {array.dtype} {shape}".rstrip().encode())
        digest.update(np.ascontiguousarray(array).data)

    for name, array in sorted(arrays.items()):
        update(name, array, array.shape)
    if (folder / INTERACTIONS).exists():
        file = pq.ParquetFile(folder / INTERACTIONS)
        for rows in file.iter_batches(_ROW_GROUP):
            digest.update(pl.DataFrame(rows).write_ndjson().encode())
    for _, table in sorted(tables.items()):
        vectors = [name for name, dtype in table.schema.items() if is_vectors(dtype)]
        for rows in table.drop(vectors).iter_slices(_ROW_GROUP):
            digest.update(rows.write_ndjson().encode())
        for name in vectors:  # as text they would take minutes for a million items
            lists = as_lists(table[name])
            update(name, lists.list.len().cast(pl.Int64).fill_null(-1).to_numpy())
            update(name, lists.drop_nulls().explode().fill_null(float("nan")).to_numpy())
    return digest.hexdigest()


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


def _warn(log: Log, arrays: Mapping[str, NDArray[Any]], held_out: int) -> None:
    """Warn of times in two units and of copies across the cuts."""
    if len(units := units_in(arrays["timestamps"])) > 1:
        logger.warning(
            "%s: column %r has times %s: they are compared as numbers, so that all of one unit "
            "come before all of another: bring them to one unit",
            *(log.origin, log.columns.timestamp),
            " and ".join(f"in {unit}, such as {time}" for unit, time in units.items()),
        )
    _, across = count_copies(**arrays)
    if across:
        logger.warning(
            "%s: %s of %s held-out interactions (%.1f%%) are copies, in user, item and time, "
            "of earlier ones, which a model has seen: --set data.duplicates=drop_exact drops them "
            "(in Python duplicates='drop_exact')",
            *(log.origin, f"{across:,}", f"{held_out:,}", 100 * across / held_out),
        )
