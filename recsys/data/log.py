"""The interaction log: read, checked, and put in one total order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import narwhals as nw
import polars as pl

from recsys.config import Columns, DataConfig, GlobalTime, Split, time_value
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError

Frame = nw.LazyFrame[Any]

_ISO_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M%#z",
)


@dataclass(frozen=True, slots=True)
class InteractionLog:
    """Who took what, when: checked, and in one total order.

    The order is that of users, then of time within a user, then of the position column if there is
    one, then of the rows in the source: no two rows change places from one run to the next.
    """

    frame: Frame
    """user_id and item_id (integers or text), timestamp (int64: numbers rounded down, dates as
    seconds since 1970 UTC), weight (float32) if given, and order: 0, 1, … along the total order."""
    ordered_by: str
    """The total order in words."""
    fingerprint: str
    """SHA-256 of the rows as read, in order, whatever file or frame they came from."""
    rows: int
    origin: str
    """The file or data set, as messages name it."""
    columns: Columns
    """What the source calls its columns."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows of the source that were left out before, by the reasons of `DataConfig.drop`."""


def read_log(
    source: TableSource, columns: Columns | None = None, origin: str = ""
) -> InteractionLog:
    """Read a log and put it in its total order.

    Messages count data rows from 1, header left out.

    Raises:
        InputError: the source cannot be read (`read_table`), or a value breaks its column's rule.
    """
    columns = columns or Columns()
    roles = {role: name for role, name in columns.model_dump().items() if name is not None}
    origin = origin or (str(source) if isinstance(source, str | os.PathLike) else "the frame")
    for name in roles.values():
        if len(same := [role for role in roles if roles[role] == name]) > 1:
            raise InputError(f"{origin}: column {name!r} cannot be both {' and '.join(same)}")
    table = read_table(source, list(roles.values()), origin)
    table = table.select(pl.col(name).alias(role) for role, name in roles.items())
    table = table.with_row_index("row", offset=1).filter(
        ~pl.all_horizontal(pl.exclude("row").is_null())  # blank lines of a text file
    )
    if table.is_empty():
        raise InputError(f"{origin}: no rows")
    typed = [
        _RULES[role](_Column(table[role], table["row"], f"{origin}: column {name!r}"))
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
    """SHA-256 of a table of integers, floats and text: of its names, types and values."""
    digest = hashlib.sha256()
    for column in table:
        digest.update(f"{column.name} {column.dtype} {len(column)}\n".encode())
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
    kept = [name for name in ("user_id", "item_id", "timestamp", "weight") if name in schema]
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


# The rules of the columns.


@dataclass(frozen=True, slots=True)
class _Column:
    """A column under check, and what a message needs to point into it."""

    values: pl.Series
    rows: pl.Series
    place: str

    def refuse(self, bad: pl.Series, rule: str) -> None:
        """Complain of the first bad value, if there is one."""
        if (first := bad.arg_max()) is not None and bad[first]:
            row, value = self.rows[first], self.values[first]
            raise InputError(f"{self.place}, data row {row}: {rule}: {value!r}")


def _ids(column: _Column) -> pl.Series:
    """Integers as int64, or text."""
    ids = column.values
    column.refuse(ids.is_null(), "an id is missing")
    if ids.dtype in (pl.Categorical, pl.Enum):
        ids = ids.cast(pl.String)
    if ids.dtype == pl.String:
        column.refuse(ids == "", "an id is missing")
        return ids
    if not ids.dtype.is_integer():
        raise InputError(f"{column.place}: ids are integers or text, not {ids.dtype}")
    whole = ids.cast(pl.Int64, strict=False)
    column.refuse(whole.is_null(), "an id of more than 64 bits")
    return whole


def _times(column: _Column) -> pl.Series:
    """int64, float64, date or date-time: whatever keeps the full precision for the order."""
    times = column.values
    column.refuse(times.is_null(), "a value is missing")
    if times.dtype == pl.String:
        numbers, dates = _numbers_in(times), _dates_in(times)
        times = min(numbers, dates, key=pl.Series.null_count)
        column.refuse(times.is_null(), "neither a number nor an ISO 8601 date")
    if times.dtype in (pl.Date, pl.Datetime):
        return times
    return _numbers(replace(column, values=times))


def _numbers(column: _Column) -> pl.Series:
    """int64 or float64, finite."""
    numbers = column.values
    if numbers.dtype == pl.String:
        numbers = _numbers_in(numbers)
    elif not numbers.dtype.is_numeric():
        raise InputError(f"{column.place}: not numbers but {numbers.dtype}")
    if numbers.dtype.is_integer():
        numbers = numbers.cast(pl.Int64, strict=False)
        bad = numbers.is_null()
    else:
        numbers = numbers.cast(pl.Float64, strict=False)
        bad = ~(numbers.abs() < 2.0**63).fill_null(False)  # NaN counts as the largest number
    column.refuse(bad, "not a finite number of at most 64 bits")
    return numbers


def _weights(column: _Column) -> pl.Series:
    return _numbers(column).cast(pl.Float32)


def _numbers_in(text: pl.Series) -> pl.Series:
    whole = text.cast(pl.Int64, strict=False)
    return text.cast(pl.Float64, strict=False) if whole.null_count() else whole


def _dates_in(text: pl.Series) -> pl.Series:
    """UTC date-times of ISO 8601 text, null where it is not; times without a zone are UTC."""
    text = text.str.replace(r"^(\d{4}-\d{2}-\d{2}) ", "${1}T")
    times = pl.Series(text.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(text))
    for form in _ISO_FORMATS:
        if times.null_count():
            found = text.str.to_datetime(form, time_unit="us", strict=False)
            if form.endswith("z"):
                found = found.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
            times = times.fill_null(found)
    return times


_RULES: dict[str, Callable[[_Column], pl.Series]] = {
    "user_id": _ids,
    "item_id": _ids,
    "timestamp": _times,
    "position": _times,
    "weight": _weights,
}
