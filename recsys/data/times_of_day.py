"""Logs that have the days in one column and the times of day in another."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import time

import polars as pl

from recsys.config import ROW_ORDER
from recsys.data.column_names import plain_name
from recsys.data.missing import present_values
from recsys.data.time_format import as_iso, compact_form, fitting_forms
from recsys.errors import InputError

_DAY = r"^\d{4}-\d\d-\d\d(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00:?00)?)?$"
_CLOCK = r"^(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?$"
_PARTS = {"year": (1900, 2200), "month": (1, 12), "day": (1, 31), "date": (1, 31)}
"""How the names of the parts of a date end, and what these are between."""
_LENGTHS = ("duration", "length", "runtime")
"""Columns that are called so have minutes and seconds."""


def refuse_times_of_day(sample: pl.DataFrame, days: str, origin: str) -> None:
    """Refuse days whose times are in a column of their own, whatever that is called.

    Args:
        sample: the first rows of a log.
        days: the column of its times.
        origin: its name in messages.

    Raises:
        InputError: the log has such a column.
    """
    times = sample[days]
    forms = *fitting_forms(times), compact_form(times)  # whichever fits, the days stay days
    if not are_days(times if forms[0] is None else as_iso(times, forms[0])):
        return
    for column in sample:
        if column.name != days and _are_times_of_day(column):
            raise InputError(
                f"{origin}: {days} has days, and {column.name} has times of day: join them into "
                f"one column, or take the days alone with --time {days} (in Python time={days!r})"
            )


def date_parts(sample: pl.DataFrame) -> list[str]:
    """Return the columns of the month and the day of the month, and of the year if there is one.

    >>> date_parts(pl.DataFrame({"user": [1], "Year": [2020], "Month": [12], "Day": [31]}))
    ['Year', 'Month', 'Day']
    """
    found = {
        word: column.name
        for column in reversed(sample.get_columns())
        for word, (low, high) in _PARTS.items()
        if plain_name(column.name).endswith(word)
        and column.dtype.is_integer()
        and column.is_between(low, high).all()
    }
    day = found.get("day") or found.get("date")
    if day is None or "month" not in found:
        return []
    return [found[word] for word in ("year", "month") if word in found] + [day]


def joined(parts: Sequence[str]) -> str:
    """Return how the columns of `date_parts` become a time, for a message."""
    named = ", ".join(map(repr, parts if len(parts) > 2 else ("YEAR", *parts)))
    return (
        f"{' and '.join(parts)} are parts of a date: join them into one column, in polars with "
        f"frame.with_columns(date=pl.date({named})); --time {ROW_ORDER} takes the order of the rows"
    )


def are_days(times: pl.Series) -> bool:
    """Return whether times are dates, all without a time of day or at midnight.

    >>> are_days(pl.Series(["2024-01-05", "2024-01-06 00:00:00"]))
    True
    >>> are_days(pl.Series(["2024-01-05", "2024-01-06 00:00:01"]))
    False
    """
    if times.dtype == pl.Datetime:
        return bool((times.dt.time() == time()).all())
    return times.dtype == pl.Date or _all_match(times, _DAY)


def _are_times_of_day(column: pl.Series) -> bool:
    lengths = any(word in column.name.lower() for word in _LENGTHS)
    return column.dtype == pl.Time or (not lengths and _all_match(column, _CLOCK))


def _all_match(values: pl.Series, pattern: str) -> bool:
    values = present_values(values)
    return values.dtype == pl.String and len(values) > 0 and values.str.contains(pattern).all()
