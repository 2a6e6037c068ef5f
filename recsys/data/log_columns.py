"""The columns of a log: the rule of each, and what it is read as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from recsys.errors import InputError

_ISO_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M%#z",
)


@dataclass(frozen=True, slots=True)
class LogColumn:
    """A column under check, and what a message needs to point into it."""

    values: pl.Series
    rows: pl.Series
    place: str

    def refuse(self, bad: pl.Series, rule: str) -> None:
        """Complain of the first bad value, if there is one."""
        if (first := bad.arg_max()) is not None and bad[first]:
            row, value = self.rows[first], self.values[first]
            raise InputError(f"{self.place}, data row {row}: {rule}: {value!r}")


def _ids(column: LogColumn) -> pl.Series:
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


def _times(column: LogColumn) -> pl.Series:
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


def _numbers(column: LogColumn) -> pl.Series:
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


def as_kept(column: pl.Series) -> pl.Series:
    """A column that is kept, whatever it means: int64, float64, text or lists of text."""
    if column.dtype.is_integer():
        return column.cast(pl.Int64, strict=False)
    if column.dtype.is_numeric():
        return column.cast(pl.Float64)
    return column.cast(pl.List(pl.String) if column.dtype.is_nested() else pl.String)


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


RULES: dict[str, Callable[[LogColumn], pl.Series]] = {
    "user_id": _ids,
    "item_id": _ids,
    "timestamp": _times,
    "position": _times,
}
