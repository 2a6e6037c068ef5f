"""The interaction log: read, checked and sorted into one total order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import narwhals as nw
import polars as pl

from recsys.config import Columns, DataConfig, GlobalTime, Split
from recsys.data.log_columns import RULES, LogColumn, convert_kept, roles_of
from recsys.data.tables import TableSource, read_table
from recsys.data.time_units import not_before
from recsys.errors import InputError
from recsys.folders.digests import table_sha256

Frame = nw.LazyFrame[Any]

KEPT = "kept."
"""Prefix of the names of kept columns, so that they cannot clash with the log's own columns."""

ROW = "row number in the source"
"""The column of the number of each row of a table, from 1, that messages name."""

BLANK = "blank rows"
"""The reason under which rows without any value are counted."""


@dataclass(frozen=True, slots=True)
class InteractionLog:
    """Checked interactions of users with items, in one total order.

    Rows are sorted by user, then time, then the position column if there is one, then their order
    in the source. So the order is the same in every run.
    """

    frame: Frame
    """user_id and item_id (integers or text), timestamp (int64: numbers rounded down, dates as
    seconds since 1970 UTC), kept columns, and order: 0, 1, … along the total order."""
    ordered_by: str
    """A description of the total order."""
    fingerprint: str
    """SHA-256 of the rows as read, in order, independent of the file or frame they came from."""
    rows: int
    """The number of rows."""
    origin: str
    """The name of the file or dataset in messages."""
    columns: Columns
    """The names of the columns in the source."""
    keep: tuple[str, ...] = ()
    """The names of the kept columns: int64, float64, text or lists of text."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """The number of dropped rows of the source, by reason: those of `DataConfig.drop`, the names of
    other settings that drop rows, and `BLANK`. They and ``rows`` add up to those of the source."""
    time_format: str | None = None
    """The form that dates were read by, given or found; None if that of ISO 8601 alone."""


def read_log(
    source: TableSource,
    columns: Columns | None = None,
    origin: str = "",
    keep: Sequence[str] = (),
) -> InteractionLog:
    """Read a log and sort it into its total order.

    Messages number data rows from 1, without the header.

    Args:
        source: a file or a frame.
        columns: the names of its columns; if None, user_id, item_id, timestamp.
        origin: its name in messages; the name of the file if not given.
        keep: the names of further columns to keep.

    Raises:
        InputError: the source cannot be read (`read_table`), or a value breaks its column's rule.
    """
    columns = columns or Columns()
    origin = origin or (str(source) if isinstance(source, str | os.PathLike) else "the frame")
    table = read_table(source, [*columns.roles.values(), *keep], origin)
    return check_log(table.with_row_index(ROW, offset=1), columns, origin, keep)


def check_log(
    table: pl.DataFrame, columns: Columns, origin: str, keep: Sequence[str] = ()
) -> InteractionLog:
    """Check the values of a log, and sort it into its total order.

    Args:
        table: the columns of the log, and `ROW`: the number of each row in messages.
        columns: the names of its columns.
        origin: its name in messages.
        keep: the names of further columns to keep.

    Raises:
        InputError: a value breaks its column's rule, or the table has no rows.
    """
    roles = roles_of(columns, origin)
    read = len(table)
    table = table.select(
        pl.col(ROW).alias("row"),
        *(pl.col(name).alias(role) for role, name in roles.items()),
        *(
            convert_kept(table[name], f"{origin}: column {name!r}").alias(KEPT + name)
            for name in keep
        ),
    ).filter(
        ~pl.all_horizontal(pl.exclude("row").is_null())  # blank lines of a text file
    )
    if table.is_empty():
        raise InputError(f"{origin}: no rows")
    typed = [
        RULES[role](LogColumn(table[role], table["row"], origin, name))
        for role, name in roles.items()
    ]
    ordered = _in_order(table.with_columns(typed))
    return InteractionLog(
        frame=nw.from_native(ordered.lazy()),
        ordered_by=order_in_words(columns),
        fingerprint=table_sha256(ordered.drop("order")),
        rows=len(ordered),
        origin=origin,
        columns=columns,
        keep=tuple(keep),
        dropped={BLANK: read - len(table)} if read > len(table) else {},
    )


def order_in_words(columns: Columns) -> str:
    """Return a description of the total order of a log with such columns."""
    ties = "the order of the rows"
    if columns.position is not None:
        ties = f"column {columns.position!r}, then {ties}"
    return f"user_id, timestamp; ties broken by {ties}"


def filter_log(log: InteractionLog, config: DataConfig) -> InteractionLog:
    """Drop early and late rows, then duplicates, then rare items and inactive users; count them.

    Early rows are those before ``since``, late rows those after the end of the split. Items are
    filtered first, then users; with ``k_core`` repeatedly until both minimums hold. Times are
    compared as stored: dates in whole seconds.

    Raises:
        InputError: no user is left.
    """

    def collected(kept: Frame) -> tuple[Frame, int]:
        frame = kept.sort("order").collect().lazy()
        return frame, _count(frame)

    frame, rows, counts = filter_frame(log.frame, log.rows, config, collected)
    dropped = dict(log.dropped)
    for reason, count in counts.items():
        dropped[reason] = dropped.get(reason, 0) + count
    if rows == 0:
        users, items = (_count(log.frame.select(name).unique()) for name in ("user_id", "item_id"))
        raise nobody_left(config, log.origin, log.rows, users, items)
    return replace(log, frame=frame, rows=rows, dropped=dropped)


def filter_frame(
    frame: Frame, rows: int, config: DataConfig, computed: Callable[[Frame], tuple[Frame, int]]
) -> tuple[Frame, int, dict[str, int]]:
    """Return what the filters leave of a frame and its rows, and the rows dropped by each reason.

    ``computed`` computes what a filter leaves and counts its rows, so that the next filter begins
    with a table and not with a plan that repeats the filters before it.
    """
    dropped: dict[str, int] = {}

    def keep(reason: str, kept: Frame) -> None:
        nonlocal frame, rows
        if kept is frame:
            return
        before = rows
        frame, rows = computed(kept)
        if before > rows:
            dropped[reason] = dropped.get(reason, 0) + before - rows

    for reason, step in row_steps(config):
        keep(reason, step(frame))
    while True:
        before = rows
        for column in ("item_id", "user_id"):
            name = f"min_{column.removesuffix('_id')}_interactions"
            keep(name, with_at_least(frame, column, getattr(config, name)))
        if rows == before or not config.k_core:
            return frame, rows, dropped


def row_steps(config: DataConfig) -> list[tuple[str, Callable[[Frame], Frame]]]:
    """Return the filters that read one user's rows at a time, in order, each with its reason."""
    return [
        ("since", lambda frame: _since(frame, config.since)),
        ("test_until", lambda frame: _before_end_of_split(frame, config.split)),
        ("duplicates", lambda frame: _without_duplicates(frame, config.duplicates)),
    ]


def nobody_left(config: DataConfig, origin: str, rows: int, users: int, items: int) -> InputError:
    """Return the error that no user of a log of so many rows survives the filter."""
    since = "" if config.since is None else f"since={config.since}, "
    return InputError(
        f"{origin}: no user survives the filter ({since}duplicates={config.duplicates}, "
        f"min_item_interactions={config.min_item_interactions}, "
        f"min_user_interactions={config.min_user_interactions}, k_core={config.k_core}): "
        f"the log has {rows} rows of {users} users and {items} items"
    )


def _in_order(table: pl.DataFrame) -> pl.DataFrame:
    """Number the rows along the total order, and convert times to integers."""
    users = table.select(pl.col("user_id").unique().sort()).with_row_index("user")
    by = ["user", "timestamp", *(["position"] if "position" in table.columns else []), "row"]
    keys = table.with_row_index("place")
    if table["user_id"].dtype == pl.String:
        keys = keys.join(users, on="user_id", how="left", maintain_order="left")
    else:
        keys = keys.rename({"user_id": "user"})
    places = keys.select("place", *by).sort(by)["place"]
    kept = ["user_id", "item_id", "timestamp"]
    kept += [name for name in table.columns if name.startswith(KEPT)]
    return (
        table.select(kept)[places]
        .with_columns(whole_times(pl.col("timestamp"), table["timestamp"].dtype))
        .with_row_index("order")
        .select(*kept, pl.col("order").cast(pl.Int64))
    )


def whole_times(times: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Convert times to int64: numbers are rounded down, dates become seconds since 1970 UTC."""
    if dtype == pl.Date:
        times, dtype = times.cast(pl.Datetime("us")), pl.Datetime("us")
    if dtype == pl.Datetime:
        return times.dt.timestamp("us") // 1_000_000
    return (times // 1).cast(pl.Int64)


# The filters use only Narwhals expressions, so that they run on any engine.


def _since(frame: Frame, since: str | float | None) -> Frame:
    """Drop the rows before a time."""
    return frame if since is None else frame.filter(not_before(since))


def _before_end_of_split(frame: Frame, split: Split) -> Frame:
    if not isinstance(split, GlobalTime) or split.test_until is None:
        return frame
    return frame.filter(~not_before(split.test_until))


def _without_duplicates(
    frame: Frame, policy: Literal["keep", "drop_exact", "first", "last"]
) -> Frame:
    if policy == "keep":
        return frame
    same = ["user_id", "item_id", *(["timestamp"] if policy == "drop_exact" else [])]
    order = nw.col("order").max() if policy == "last" else nw.col("order").min()
    return frame.join(frame.group_by(same).agg(order).select("order"), on="order", how="semi")


def with_at_least(frame: Frame, column: str, minimum: int) -> Frame:
    """Keep the rows of the users, or items, with at least ``minimum`` rows."""
    if minimum == 1:
        return frame
    sizes = frame.group_by(column).agg(nw.len().alias("size"))
    return frame.join(sizes.filter(nw.col("size") >= minimum), on=column, how="semi")


def _count(frame: Frame) -> int:
    return int(frame.select(nw.len()).collect().item())
