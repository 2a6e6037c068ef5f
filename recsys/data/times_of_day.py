"""Logs that have the days in one column and the times of day in another."""

from __future__ import annotations

from datetime import time

import polars as pl

from recsys.data.missing import present_values
from recsys.data.time_format import as_iso, compact_form, fitting_forms
from recsys.errors import InputError

_DAY = r"^\d{4}-\d\d-\d\d(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00:?00)?)?$"
_CLOCK = r"^(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?$"
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
