"""The interaction log: read, checked, and put in one total order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import narwhals as nw
import polars as pl

from recsys.config import Columns, DataConfig, GlobalTime, Split, time_value
from recsys.data.log_columns import RULES, LogColumn, as_kept
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError

Frame = nw.LazyFrame[Any]

KEPT = "kept."
"""What the names of columns begin with that are kept as they are: their own may mean another."""


@dataclass(frozen=True, slots=True)
class InteractionLog:
    """Who took what, when: checked, and in one total order.

    The order is that of users, then of time within a user, then of the position column if there is
    one, then of the rows in the source: no two rows change places from one run to the next.
    """

    frame: Frame
    """user_id and item_id (integers or text), timestamp (int64: numbers rounded down, dates as
    seconds since 1970 UTC), the columns kept, and order: 0, 1, … along
    the total order."""
    ordered_by: str
    """The total order in words."""
    fingerprint: str
    """SHA-256 of the rows as read, in order, whatever file or frame they came from."""
    rows: int
    origin: str
    """The file or data set, as messages name it."""
    columns: Columns
    """What the source calls its columns."""
    keep: tuple[str, ...] = ()
    """Other columns of the source that are kept: int64, float64, text or lists of text."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows of the source that were left out before, by the reasons of `DataConfig.drop`."""


def read_log(
    source: TableSource,
    columns: Columns | None = None,
    origin: str = "",
    keep: Sequence[str] = (),
) -> InteractionLog:
    """Read a log and put it in its total order.

    Messages count data rows from 1, header left out.

    Args:
        source: a file or a frame.
        columns: what it calls its columns; None: user_id, item_id, timestamp.
        origin: what messages call it; the name of the file if not given.
        keep: its columns that are kept as they are.

    Raises:
        InputError: the source cannot be read (`read_table`), or a value breaks its column's rule.
    """
    columns = columns or Columns()
    roles = {role: name for role, name in columns.model_dump().items() if name is not None}
    origin = origin or (str(source) if isinstance(source, str | os.PathLike) else "the frame")
    for name in roles.values():
        if len(same := [role for role in roles if roles[role] == name]) > 1:
            raise InputError(f"{origin}: column {name!r} cannot be both {' and '.join(same)}")
    table = read_table(source, [*roles.values(), *keep], origin)
    table = table.select(
        *(pl.col(name).alias(role) for role, name in roles.items()),
        *(as_kept(table[name]).alias(KEPT + name) for name in keep),
    )
    table = table.with_row_index("row", offset=1).filter(
        ~pl.all_horizontal(pl.exclude("row").is_null())  # blank lines of a text file
    )
    if table.is_empty():
        raise InputError(f"{origin}: no rows")
    typed = [
        RULES[role](LogColumn(table[role], table["row"], f"{origin}: column {name!r}"))
        for role, name in roles.items()
    ]
    frame = _in_order(nw.from_native(table.with_columns(typed).lazy()))
    ties = "the order of the rows"
    if columns.position is not None:
        ties = f"column {columns.position!r}, then {ties}"
    ordered = frame.collect("polars").to_polars()
    return InteractionLog(
        frame=nw.from_native(ordered.lazy()),
        ordered_by=f"user_id, timestamp; ties broken by {ties}",
        fingerprint=fingerprint(ordered.drop("order")),
        rows=len(ordered),
        origin=origin,
        columns=columns,
        keep=tuple(keep),
    )


def filter_log(log: InteractionLog, config: DataConfig) -> InteractionLog:
    """End the log where its split does, and apply the duplicates policy, then the minimum numbers.

    Items come first, then users; with ``k_core`` again and again until both minimums hold. Times
    are compared as stored, in whole seconds where they were dates.

    Raises:
        InputError: no user is left.
    """
    frame = _without_duplicates(_until_its_end(log.frame, config.split), config.duplicates)
    rows = _count(frame)
    while True:
        frame = _with_at_least(frame, "item_id", config.min_item_interactions)
        frame = _with_at_least(frame, "user_id", config.min_user_interactions)
        frame = frame.sort("order").collect().lazy()
        before, rows = rows, _count(frame)
        if rows == before or not config.k_core:
            break
    if rows == 0:
        raise InputError(
            f"{log.origin}: no user survives the filter (duplicates={config.duplicates}, "
            f"min_item_interactions={config.min_item_interactions}, "
            f"min_user_interactions={config.min_user_interactions}, k_core={config.k_core}): "
            f"the log has {log.rows} rows of {_count(log.frame.select('user_id').unique())} users "
            f"and {_count(log.frame.select('item_id').unique())} items"
        )
    return replace(log, frame=frame, rows=rows)


def fingerprint(table: pl.DataFrame) -> str:
    """SHA-256 of a table of integers, floats, text and lists of text.

    It is that of its names, types and values.
    """
    digest = hashlib.sha256()
    for column in table:
        digest.update(f"{column.name} {column.dtype} {len(column)}\n".encode())
        if isinstance(column.dtype, pl.List):
            column = column.list.join("\x1f", ignore_nulls=True)  # noqa: PLW2901
        if column.dtype == pl.String:
            digest.update(column.str.len_bytes().to_numpy().tobytes())
            digest.update(column.str.join("").item().encode())
        else:
            digest.update(column.to_numpy().tobytes())
    return digest.hexdigest()


# The order and the filters: Narwhals expressions alone, so that they run on any engine.


def _in_order(frame: Frame) -> Frame:
    """Number the rows along the total order, and bring times to whole numbers."""
    schema = frame.collect_schema()
    by = [name for name in ("user_id", "timestamp", "position", "row") if name in schema]
    time, unit = nw.col("timestamp"), 1
    if schema["timestamp"] == nw.Date:
        time = time.cast(nw.Datetime("us"))
    if schema["timestamp"] in (nw.Date, nw.Datetime):
        time, unit = time.dt.timestamp("us"), 1_000_000
    kept = [name for name in ("user_id", "item_id", "timestamp") if name in schema]
    kept += [name for name in schema if name.startswith(KEPT)]
    return (
        frame.with_row_index("order", order_by=by)
        .with_columns((time // unit).cast(nw.Int64).alias("timestamp"))
        .select(*kept, nw.col("order").cast(nw.Int64))
        .sort("order")
    )


def _until_its_end(frame: Frame, split: Split) -> Frame:
    if not isinstance(split, GlobalTime) or split.test_until is None:
        return frame
    return frame.filter(nw.col("timestamp") < time_value(split.test_until))


def _without_duplicates(
    frame: Frame, policy: Literal["keep", "drop_exact", "first", "last"]
) -> Frame:
    if policy == "keep":
        return frame
    same = ["user_id", "item_id", *(["timestamp"] if policy == "drop_exact" else [])]
    order = nw.col("order").max() if policy == "last" else nw.col("order").min()
    return frame.join(frame.group_by(same).agg(order).select("order"), on="order", how="semi")


def _with_at_least(frame: Frame, column: str, minimum: int) -> Frame:
    """The rows of the users, or items, that have at least so many."""
    if minimum == 1:
        return frame
    sizes = frame.group_by(column).agg(nw.len().alias("size"))
    return frame.join(sizes.filter(nw.col("size") >= minimum), on=column, how="semi")


def _count(frame: Frame) -> int:
    return int(frame.select(nw.len()).collect().item())
