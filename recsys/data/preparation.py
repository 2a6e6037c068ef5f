"""How a log becomes the folder of a prepared dataset."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import polars as pl
from narwhals.exceptions import NarwhalsError

from recsys.config import DataConfig, LeaveLastBasketOut, LeaveLastOut
from recsys.data.arrays import (
    OUTSIDE,
    Contents,
    PreparedLog,
    build_arrays,
    count_copies,
    count_rows,
    dataset_fingerprint,
    write_contents,
)
from recsys.data.engines import Engine, choose_engine
from recsys.data.frames import readable_again
from recsys.data.log import InteractionLog, order_in_words
from recsys.data.manifest import AppendedLog, Manifest
from recsys.data.memory import memory_setting
from recsys.data.on_disk.preparation import prepare_on_disk
from recsys.data.on_spark.preparation import prepare_on_spark
from recsys.data.row_rules import select_interactions
from recsys.data.sources import load_source
from recsys.data.splits import SplitChoice
from recsys.data.tables import TableSource, read_table
from recsys.data.time_units import far_times, unit_name, units_in, units_per_second
from recsys.errors import InputError
from recsys.folders.atomic import new_folder, work_folder
from recsys.folders.locks import sole_use

logger = logging.getLogger(__name__)

PATIENCE = 600
"""Seconds to wait for another process that prepares the same folder, often with the same data."""
_SAMPLE = 1_000
"""The number of times that tell their unit."""
_SHORTEST_GAP = 60
"""Seconds: a shorter pause does not end a session."""
_NO_CONTENT = {"source", "mirror", "columns", "header", "encoding", "time_format"}
"""The settings that say where a log is and how it is written, not what is in the dataset."""


def write_dataset(
    source: TableSource | InteractionLog,
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

    Args:
        source: a log.
        config: how to read and prepare it.
        out: the folder.
        items: item features, if there are any.
        users: user features, if there are any.
        memory: the bytes that it may take; see `memory_setting`.
        engine: what prepares it; see `choose_engine`.
        choose_split: chooses another split than that of the settings for the sorted log, if it is
            given.

    Raises:
        InputError: the log, a table or the folder is invalid; nothing is written then.
    """
    if not isinstance(source, InteractionLog):
        source = held(source)  # choosing the engine reads it too
    items, users = (None if table is None else held(table) for table in (items, users))
    previous = Manifest.load_if_valid(out)
    limit = memory_setting(memory)
    chosen = choose_engine(source, config, engine, limit)
    user_table = read_features(users, config, "the user table")
    if chosen == "memory":
        _write(_in_memory(source, config, items, user_table, choose_split), config, out, previous)
        return
    with work_folder(out) as folder:
        item_table = read_features(items, config, "the item table")
        large: PreparedLog | None = None
        given = config, folder, limit, item_table, user_table, choose_split
        if chosen == "spark":
            large = prepare_on_spark(source, *given)
        elif not isinstance(source, InteractionLog):
            large = prepare_on_disk(source, *given)
        if large is None:
            large = _in_memory(source, config, items, user_table, choose_split)
        _write(large, config, out, previous)


def held(table: TableSource) -> TableSource:
    """Return a table that can be read more than once; a bad one is refused where it is opened."""
    try:
        return table if isinstance(table, str | os.PathLike) else readable_again(table)
    except (pl.exceptions.PolarsError, NarwhalsError):
        return table


def _in_memory(
    source: TableSource | InteractionLog,
    config: DataConfig,
    items: TableSource | None,
    users: pl.DataFrame | None,
    choose_split: SplitChoice | None,
) -> PreparedLog:
    log, item_table = _load(source, config)
    if items is not None:
        item_table = read_features(items, config, "the item table")
    filtered = select_interactions(log, config)
    contents = build_arrays(filtered, item_table, users, config, choose_split=choose_split)
    return PreparedLog(
        *(log.origin, log.columns, log.fingerprint, filtered.dropped, contents),
        time_format=log.time_format,
    )


def read_features(
    table: TableSource | None, config: DataConfig, origin: str
) -> pl.DataFrame | None:
    """Return the table of items or users that belongs to a log; None if there is none.

    Raises:
        InputError: it cannot be read.
    """
    return None if table is None else read_table(table, origin=origin, encoding=config.encoding)


def _write(found: PreparedLog, config: DataConfig, out: Path, previous: Manifest | None) -> None:
    """Write the dataset, unless the previous one is the same."""
    form = found.time_format or config.time_format
    config = config.model_copy(update={"split": found.contents.split, "time_format": form})
    _warn_of_short_gap(found, config)
    if config.since is not None and not found.dropped.get("since"):
        logger.warning("%s: since %s drops no row: none is earlier", found.origin, config.since)
    manifest = describe(found, config)
    if _same(previous, manifest, found.contents):
        return
    if previous is not None and previous.appended:
        logger.warning(
            "%s: had grown by %d appended logs, the last from %s: it is replaced by %s alone",
            *(out, len(previous.appended), previous.appended[-1].source, found.origin),
        )
    with sole_use(out, "prepares it", PATIENCE):
        # Another process may have prepared the same meanwhile.
        if not _same(Manifest.load_if_valid(out), manifest, found.contents):
            put_in_place(found, manifest, out)


def describe(
    found: PreparedLog, config: DataConfig, appended: tuple[AppendedLog, ...] = ()
) -> Manifest:
    """Return the manifest of a dataset, without its files; warn of units and of empty parts."""
    settings = config.model_dump(mode="json", exclude={"source", "mirror", "columns"})
    content = {name: value for name, value in settings.items() if name not in _NO_CONTENT}
    counts = count_rows(found.dropped, found.contents)
    _warn_of_two_units(found)
    _warn_of_far_times(found)
    _warn_of_one_time(found)
    _warn_of_copies(found, counts)
    _warn_of_empty_parts(found, config, counts)
    return Manifest(
        origin=found.origin,
        log_fingerprint=found.fingerprint,
        fingerprint=dataset_fingerprint(content, found.contents),
        settings=settings,
        columns=found.columns,
        ordered_by=order_in_words(found.columns),
        filtered_on="all rows, including validation and test targets",
        counts=counts,
        dropped=dict(found.dropped),
        files={},
        appended=appended,
    )


def put_in_place(found: PreparedLog, manifest: Manifest, out: Path) -> None:
    """Write a dataset into a new folder that takes the place of what is there.

    Raises:
        InputError: the folder cannot be written.
    """
    with new_folder(out) as folder:
        files = write_contents(folder, found.contents, found.arrays)
        manifest.model_copy(update={"files": files}).write(folder)


def _same(previous: Manifest | None, manifest: Manifest, contents: Contents) -> bool:
    """Return whether the previous dataset has the content, and what an append needs beside it."""
    parts = ["fingerprint", "counts", "dropped"]
    if contents.outside is not None:
        if previous is None or f"{OUTSIDE}.parquet" not in previous.files:
            return False
        parts.append("log_fingerprint")  # the fingerprint does not cover the items outside
    return previous is not None and all(
        getattr(previous, part) == getattr(manifest, part) for part in parts
    )


def _load(
    source: TableSource | InteractionLog, config: DataConfig
) -> tuple[InteractionLog, pl.DataFrame | None]:
    """Return the log, and the item table of named datasets that have one."""
    if not isinstance(source, InteractionLog):
        return load_source(source, config)
    if config.drop or config.where is not None:
        rule = "where" if config.where is not None else "drop"
        raise InputError(
            f"data.{rule}: {source.origin} was read already: drop rows when reading it"
        )
    if config.keep != source.keep:
        raise InputError(
            f"data.keep: {source.origin} was read already: keep columns when reading it"
        )
    return source, None


def _warn_of_two_units(log: PreparedLog) -> None:
    """Warn of times in seconds beside others in milliseconds and the like."""
    times: dict[str, int] = units_in(log.contents.arrays["timestamps"])
    if len(times) > 1:
        found = " and ".join(f"in {unit}, such as {time}" for unit, time in times.items())
        logger.warning(
            "%s: column %r has times %s: they are compared as numbers, so that all of one unit "
            "come before all of another: bring them to one unit",
            *(log.origin, log.columns.timestamp, found),
        )


def _warn_of_far_times(log: PreparedLog) -> None:
    """Warn of times such as 1900-01-01 and 9999-12-31, which stand for unknown ones."""
    times = log.contents.arrays["timestamps"]
    if (found := far_times(times)) is not None:
        count, time = found
        day = np.datetime64(time // units_per_second(time), "s").astype("datetime64[D]")
        logger.warning(
            "%s: column %r has times outside of 1985 to 2128 in %s of %s interactions, such as "
            "%s (%d): if they stand for unknown times, drop such rows with --where (in Python "
            "where=)",
            *(log.origin, log.columns.timestamp, f"{count:,}", f"{len(times):,}", day, time),
        )


def _warn_of_one_time(log: PreparedLog) -> None:
    """Warn of a log whose interactions all have the same time."""
    times = log.contents.arrays["timestamps"]
    if len(times) > 1 and times.min() == times.max():
        logger.warning(
            "%s: column %r has one time, %d, in all %s interactions, which is no order: histories "
            "and held-out targets follow the order of the rows, and unless that is an order of "
            "time, no model can learn what comes next, and metrics only tell who likes what: name "
            "another column with --time (in Python time=), or row-order if the rows are in order",
            *(log.origin, log.columns.timestamp, times[0], f"{len(times):,}"),
        )


def _warn_of_copies(log: PreparedLog, counts: dict[str, int]) -> None:
    """Warn of held-out interactions that a model has seen in training."""
    _, across = count_copies(**log.contents.arrays)
    if across:
        held_out = counts["valid"] + counts["test"]
        logger.warning(
            "%s: %s of %s held-out interactions (%.1f%%) are copies, in user, item and time, "
            "of earlier ones, which a model has seen: --set data.duplicates=drop_exact drops them "
            "(in Python duplicates='drop_exact')",
            *(log.origin, f"{across:,}", f"{held_out:,}", 100 * across / held_out),
        )


def _warn_of_short_gap(log: PreparedLog, config: DataConfig) -> None:
    """Warn of a pause between sessions that is seconds where the log has finer units."""
    gap, usual = config.session_gap, int(np.median(log.contents.arrays["timestamps"][:_SAMPLE]))
    units = units_per_second(usual)
    if gap is not None and gap < _SHORTEST_GAP * units and units > 1:
        logger.warning(
            "%s: data.session_gap is %d %s, %g seconds: if it was meant in seconds, give %d",
            *(log.origin, gap, unit_name(usual), gap / units, gap * units),
        )


def _warn_of_empty_parts(log: PreparedLog, config: DataConfig, counts: dict[str, int]) -> None:
    """Warn of a split that leaves no validation or no test targets, and say what helps."""
    names = {"valid": "validation", "test": "test"}
    empty = [f"no {name}" for part, name in names.items() if not counts[part]]
    if not empty:
        return
    remedy = "hold out other interactions with data.split"
    if counts["interactions"] <= counts["users"]:
        remedy = "nothing can be learnt from users with one interaction each"
    elif isinstance(config.split, LeaveLastOut | LeaveLastBasketOut):
        remedy = "hold out the latest interactions of all users: --set data.split=global_time"
    logger.warning(
        "%s: the split %s leaves %s targets: %s users have %s interactions; is %r the column of "
        "the user? If it is, %s",
        log.origin,
        config.split,
        " and ".join(empty),
        f"{counts['users']:,}",
        f"{counts['interactions']:,}",
        log.columns.user_id,
        remedy,
    )
