"""A new log is sorted into a prepared dataset: tokens stay, and the old log is not read again."""

import logging
import os
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import polars as pl

from recsys.config.data import ROW_ORDER, TIME_IS_NUMBER, DataConfig
from recsys.data.database import database, in_one_line
from recsys.data.entity_tables import as_stored, grown_features, user_of_session
from recsys.data.histories import PAD
from recsys.data.log import KEPT, Log, filter_log, log_of_rows, read_log
from recsys.data.preparation import (
    PATIENCE,
    AppendedLog,
    Manifest,
    build,
    open_log,
    put_in_place,
    read_features,
)
from recsys.data.prepared import PreparedDataset, with_words
from recsys.data.tables import TableSource
from recsys.data.times import COMPACT
from recsys.data.where import NoRowsLeftError
from recsys.errors import InputError, checked_path
from recsys.folders import sole_use, work_folder

logger = logging.getLogger(__name__)

_ANEW = "prepare the whole log anew"


def append(
    source: TableSource,
    dataset: str | os.PathLike[str],
    items: TableSource | None = None,
    users: TableSource | None = None,
    *,
    encoding: str | None = None,
) -> PreparedDataset:
    """Sort the rows of a new log into a prepared dataset, and replace it in one step.

    Only the new log is read, by the settings of the dataset, and held in memory with the old rows.
    The result is what preparing both logs as one would give, except for the order of the ids: known
    items keep their tokens and known users their order, and new ones follow them, ascending. What
    was in the catalogue stays there. Where a user's rows have the same time, as the dataset stores
    it, new ones follow old ones. A log that is there already changes nothing.

    Args:
        source: the new log, as for `prepare`, with the columns of the first one.
        dataset: the folder of the dataset.
        items: features of new and known items, with the columns of the dataset's table.
        users: features of users, likewise.
        encoding: that of text files that are neither UTF-8 nor UTF-16; the dataset's if None.

    Raises:
        InputError: the log or a table is of another form, or a setting needs rows that the dataset
            does not have. Nothing is changed then.
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
        _refuse_what_needs_old_rows(old, config)
        try:
            new = read_log(table, config)
        except NoRowsLeftError as error:  # such as a day without purchases
            logger.warning("%s: nothing is added to %s", error, path)
            return old
        if new.time_format != config.time_format and new.time_format in COMPACT:
            raise InputError(
                f"{new.origin}: its times are read as dates, as with --time-format "
                f"{new.time_format!r}, and those of {path} were not: {_ANEW}, with --time-format "
                f"{TIME_IS_NUMBER} if none is a date"
            )
        earlier = (entry.log_fingerprint for entry in old.manifest.appended)
        if new.fingerprint in (old.manifest.log_fingerprint, *earlier):
            logger.warning("%s: its rows are in %s already", new.origin, path)
            return old
        outside = old.outside
        before, added = _rows_of(old, outside["item_id"]), _rows_of_log(new, old)
        if new.columns.position is not None:
            for row in added.join(before, on=["user_id", "timestamp"], how="semi")[:1].rows():
                raise InputError(
                    f"{new.origin}: {row[:3]} is at the time of a row of the dataset, whose column "
                    f"{new.columns.position!r} is not kept to order them: {_ANEW}"
                )
        connection = database((), folder)
        rows = pl.concat([before, added])
        known = {"user_id": old.user_ids, "item_id": old.vocabulary.ids}
        log = log_of_rows(rows, new.columns, old.manifest.origin, new.keep, connection, known)
        log.fingerprint, log.time_format = old.manifest.log_fingerprint, old.config.time_format
        log.are_dates = new.are_dates
        log.dropped = Counter(old.manifest.dropped) + new.dropped
        filter_log(log, config)
        people = _of_persons(old.user_table, config)
        every_item = pl.concat([old.item_table, outside], how="diagonal_relaxed")
        item_rows = read_features(items, config, "the item table")
        user_rows = read_features(users, config, "the user table")
        entry = AppendedLog(
            source=new.origin,
            appended_at=datetime.now(UTC).isoformat(" ", "seconds"),
            rows_read=len(added) + sum(new.dropped.values()),
            log_fingerprint=new.fingerprint,
            fingerprint_before=old.fingerprint,
        )
        manifest = build(
            log,
            old.config,
            folder / "files",
            grown_features(every_item, item_rows, new.columns.item_id, str(path)),
            grown_features(people, user_rows, new.columns.user_id, str(path)),
            old.num_items,
            (*old.manifest.appended, entry),
        )
        put_in_place(manifest, folder / "files", path)
    return PreparedDataset.open(path)


# --- What an append cannot do ---------------------------------------------------------------------


def _refuse_what_needs_old_rows(old: PreparedDataset, config: DataConfig) -> None:
    """Refuse settings that cannot be applied without rows that the dataset does not have."""
    if old.manifest.columns.timestamp == ROW_ORDER:
        raise InputError(f"{old.path}: its times are numbers of the rows of its log: {_ANEW}")
    lossy = ["min_user_interactions", "min_item_interactions"]
    if config.session_gap is not None:  # sessions were split before these dropped rows
        lossy += ["since", "test_until", "duplicates"]
    for name in lossy:
        if count := old.manifest.dropped.get(name, 0):
            raise InputError(
                f"{old.path}: {name} dropped {count:,} rows, which new ones may bring back or join "
                f"in a session, and they are not kept: {_ANEW}"
            )


# --- Old and new rows -----------------------------------------------------------------------------


def _rows_of(old: PreparedDataset, outside: pl.Series) -> pl.DataFrame:
    """Return the interactions of a dataset as the rows of a log, user by user, in order."""
    table, places = old.interaction_table, np.flatnonzero(old.items == PAD).tolist()
    table = table.with_columns(table["item_id"].clone().scatter(places, outside))
    kept = [pl.col(name).alias(KEPT + name) for name in old.config.keep]
    times = pl.Series("timestamp", np.asarray(old.timestamps))
    return _of_persons(table, old.config).select("user_id", "item_id", times, *kept)


def _rows_of_log(log: Log, old: PreparedDataset) -> pl.DataFrame:
    """Return the rows of a new log with the types of the dataset's."""
    rows, types = log.table(), old.interaction_table.head(0).schema
    names = {"user_id": log.columns.user_id, "item_id": log.columns.item_id}
    names |= {KEPT + name: name for name in log.keep}
    stored = []
    for column, name in names.items():
        origin, dtype = f"{log.origin}: column {name!r}", types[column.removeprefix(KEPT)]
        stored.append(as_stored(rows[column], dtype, origin, str(old.path)))
    return rows.with_columns(stored)


def _of_persons(table: pl.DataFrame, config: DataConfig) -> pl.DataFrame:
    """Return a table with users in place of their sessions."""
    if config.session_gap is None:
        return table
    return table.with_columns(user_of_session(table["user_id"]))
