"""A new log is sorted into a prepared dataset: tokens stay, and the old log is not read again."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime

import numpy as np
import polars as pl

from recsys.config import ROW_ORDER, TIME_IS_NUMBER, DataConfig
from recsys.data.audit import measure_drift
from recsys.data.database import database, in_one_line
from recsys.data.entity_tables import (
    as_stored,
    grow_features,
    named_plainly,
    user_of_session,
    with_ids_of_log,
)
from recsys.data.histories import PAD
from recsys.data.log import (
    KEPT,
    Log,
    conditions_of,
    filter_log,
    log_of_rows,
    read_log,
    settle,
)
from recsys.data.manifest import OUTSIDE, AppendedLog, KnownIds, Manifest, read_own_table
from recsys.data.preparation import (
    PATIENCE,
    build,
    describe,
    open_log,
    put_in_place,
    read_features,
)
from recsys.data.prepared import PreparedDataset, with_words
from recsys.data.tables import OpenTable, TableSource
from recsys.data.times import is_compact
from recsys.data.where import NoRowsLeftError
from recsys.errors import InputError, checked_path
from recsys.folders.atomic import work_folder
from recsys.folders.locks import sole_use

logger = logging.getLogger(__name__)

_ANEW = "prepare the whole log anew"
_IDS = ("user_id", "item_id")
_ITEMS, _USERS = "the item table", "the user table"
_BEFORE_MINIMUMS = ("since", "test_until", "duplicates")
"""The settings that drop rows after sessions were split."""
_MINIMUMS = ("min_user_interactions", "min_item_interactions")


def append(
    source: TableSource,
    dataset: str | os.PathLike[str],
    items: TableSource | None = None,
    users: TableSource | None = None,
    *,
    encoding: str | None = None,
) -> PreparedDataset:
    """Sort the rows of a new log into a prepared dataset, and replace it in one step.

    Only the new log is read, by the settings of the dataset. The result is what preparing both logs
    as one would give, except for the order of the ids: known items keep their tokens and known
    users their order, and new ones follow them, ascending. What was in the catalogue stays there,
    also if a cut that moved leaves it in the test part alone. Where a user's rows have the same
    time, as the dataset stores it, new ones follow old ones.

    A log that is there already, as the first one or an appended one, changes nothing; a warning
    says so. Rows, users and items are held in memory meanwhile.

    Args:
        source: the new log: a file, a folder of parts, a pattern or a frame, with the columns that
            the dataset was prepared from.
        dataset: the folder of the dataset.
        items: features of items, new ones or known ones, whose features change; the columns are
            those of the dataset's item table. New items without a row have no features.
        users: features of users, likewise.
        encoding: that of text files that are neither UTF-8 nor UTF-16; the dataset's if None.

    Returns:
        The dataset as it is now; the last of ``manifest.appended`` has the drift report.

    Raises:
        InputError: the log or a table is invalid or of another form; or a setting of the dataset
            needs rows that it does not have. Nothing is changed then.
    """
    path = checked_path(dataset)
    Manifest.read(path)  # before a lock is taken beside a path that is no dataset
    with (
        sole_use(path, "appends to it", PATIENCE),
        work_folder(path) as folder,
        in_one_line(str(path)),
    ):
        old = PreparedDataset.open(path)
        config = with_words(old.config, {"encoding": encoding})
        table, _, config = open_log(source, config, folder)
        _refuse_what_needs_old_rows(old, table, config)
        try:
            columns, settled = settle(table, config)
            new = read_log(table, settled, columns)
        except NoRowsLeftError as error:  # such as a day without purchases
            logger.warning("%s: nothing is added to %s", error, path)
            return old
        if new.time_format != config.time_format and is_compact(new.time_format):
            raise InputError(
                f"{new.origin}: its times are read as dates, as with --time-format "
                f"{new.time_format!r}, and those of {path} were not: {_ANEW}, with --time-format "
                f"{TIME_IS_NUMBER} if none is a date"
            )
        if when := _appended_before(old, new):
            logger.warning("%s: its rows are in %s already, %s", new.origin, path, when)
            return old
        before, added = _rows_of(old), _rows_of_log(new, old)
        _refuse_unordered_ties(before, added, config, new.origin)
        log = log_of_rows(
            pl.concat([before.with_columns(new=False), added.with_columns(new=True)]),
            *(new.columns, old.manifest.origin, new.keep, database((), folder)),
        )
        log.fingerprint = old.manifest.log_fingerprint
        for dropped in (old.manifest.dropped, new.dropped):
            for reason, count in dropped.items():
                log.count_drop(reason, count)
        filter_log(log, config)
        old_items, people = old.item_table["item_id"], _of_persons(old.user_table, config)
        contents = build(
            log,
            config,
            folder / "arrays",
            grow_features(old.item_table, _features(items, config, old_items), _ITEMS, str(path)),
            grow_features(people, _features(users, config, people["user_id"]), _USERS, str(path)),
            KnownIds(old_items, old.user_ids),
        )
        entry = AppendedLog(
            source=new.origin,
            appended_at=datetime.now(UTC).isoformat(" ", "seconds"),
            rows_read=len(added) + sum(new.dropped.values()),
            log_fingerprint=new.fingerprint,
            fingerprint_before=old.fingerprint,
            drift=measure_drift(before, _of_persons(log.table(["new"]).filter("new"), config)),
        )
        manifest = describe(log, contents, old.config, (*old.manifest.appended, entry))
        put_in_place(contents, manifest, path, folder / "arrays")
    return PreparedDataset.open(path)


def _features(
    table: TableSource | None, config: DataConfig, known: pl.Series
) -> pl.DataFrame | None:
    """Return a table of items or users, whose ids may be named and written as in the log.

    Args:
        table: the table; None if there is none.
        config: the settings of the dataset.
        known: the ids that the dataset has, named item_id or user_id.
    """
    key = known.name
    origin = _ITEMS if key == "item_id" else _USERS
    found = read_features(table, config, origin)
    if found is not None and config.columns is not None:
        found = named_plainly(found, key, getattr(config.columns, key))
    if found is None or key not in found.columns:
        return found
    return with_ids_of_log(found, key, known.dtype, origin)


def _refuse_what_needs_old_rows(old: PreparedDataset, table: OpenTable, config: DataConfig) -> None:
    """Refuse settings that cannot be applied without rows that the dataset does not have.

    Raises:
        InputError: the first such setting, and what to do.
    """
    path, dropped = old.path, old.manifest.dropped
    if old.manifest.columns.timestamp == ROW_ORDER:
        raise InputError(f"{path}: its times are numbers of the rows of its log: {_ANEW}")
    for name in _MINIMUMS:
        if count := dropped.get(name, 0):
            raise InputError(
                f"{path}: data.{name}: {getattr(config, name)} dropped {count:,} rows, which new "
                f"ones may bring back, and they are not kept: {_ANEW}"
            )
    for name in _BEFORE_MINIMUMS if config.session_gap is not None else ():
        if count := dropped.get(name, 0):
            key = f"split.{name}" if name == "test_until" else name
            raise InputError(
                f"{path}: data.{key} dropped {count:,} rows, which belong to sessions of "
                f"data.session_gap, and they are not kept: {_ANEW}"
            )
    for condition in conditions_of(config, table.names, table.origin).values():
        if condition.compares_rows:
            raise InputError(
                f"{path}: data.where {condition.written!r} compares rows with others, and those it "
                f"dropped are not kept: {_ANEW}"
            )


def _appended_before(old: PreparedDataset, log: Log) -> str:
    """Return when the rows of a log came into a dataset; empty if they are not there."""
    if log.fingerprint == old.manifest.log_fingerprint:
        return "since it was prepared"
    entries = (e for e in old.manifest.appended if e.log_fingerprint == log.fingerprint)
    return next((f"since {entry.appended_at}" for entry in entries), "")


def _rows_of(old: PreparedDataset) -> pl.DataFrame:
    """Return the interactions of a dataset as the rows of a log, user by user, in order."""
    table = old.interaction_table
    if places := np.flatnonzero(old.items == PAD).tolist():
        outside = read_own_table(old.path / f"{OUTSIDE}.parquet", ["item_id"])["item_id"]
        ids = table["item_id"].clone().scatter(places, outside)
        table = table.with_columns(ids)
    table = _of_persons(table, old.config)
    times = pl.Series("timestamp", np.asarray(old.timestamps))
    kept = [pl.col(name).alias(KEPT + name) for name in old.config.keep]
    return table.select("user_id", "item_id", times, *kept)


def _rows_of_log(log: Log, old: PreparedDataset) -> pl.DataFrame:
    """Return the rows of a new log with the types of the dataset's.

    Raises:
        InputError: a column has another type.
    """
    rows = log.table()
    types = dict(old.interaction_table.head(0).schema)
    names = dict(zip(_IDS, (log.columns.user_id, log.columns.item_id), strict=True))
    names |= {KEPT + name: name for name in log.keep}
    stored = []
    for column, name in names.items():
        dtype = types[column.removeprefix(KEPT)]
        told = f"{log.origin}: column {name!r}"
        stored.append(as_stored(rows[column], dtype, told, str(old.path)))
    return rows.with_columns(stored)


def _refuse_unordered_ties(
    before: pl.DataFrame, added: pl.DataFrame, config: DataConfig, origin: str
) -> None:
    """Refuse new rows at the time of old ones of the same user, if a column orders such rows.

    Raises:
        InputError: the first of them.
    """
    if config.columns is None or config.columns.position is None:
        return
    ties = added.join(before, on=["user_id", "timestamp"], how="semi")
    if not ties.is_empty():
        user, time = ties.row(0, named=True)["user_id"], ties["timestamp"][0]
        raise InputError(
            f"{origin}: user {user!r} has rows at {time} in the dataset too, and data.columns."
            f"position ({config.columns.position!r}) of these is not kept: {_ANEW}"
        )


def _of_persons(table: pl.DataFrame, config: DataConfig) -> pl.DataFrame:
    """Return a table with users in place of their sessions."""
    if config.session_gap is None:
        return table
    return table.with_columns(user_of_session(table["user_id"]))
