"""Times: forms of dates other than ISO 8601, and units of numbers."""

import re
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config.data import time_value
from recsys.data.database import computed, dates_in, numbers_in, present, text, with_nulls

# --- Forms of dates -------------------------------------------------------------------------------

_DAYS = (
    *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y"),
    *("%y.%m.%d", "%y/%m/%d", "%y-%m-%d", "%d-%m-%y", "%m-%d-%y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m %d %Y", "%Y%m%d", "%d-%b-%Y", "%d-%b-%y"),
    *("%d %b %Y", "%b %d %Y", "%a %b %d %Y", "%a %d %b %Y"),
)
_CLOCKS = ("", " %H", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", " %H:%M:%S %z")
_KNOWN = (
    *(day + clock for clock in _CLOCKS for day in _DAYS),
    *("%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S %Y", "%d/%b/%Y:%H:%M:%S %z"),
)
"""Forms that are found, or named where several fit; month and day are both tried first. Commas and
the words GMT and UTC are left out, and seconds may have fractions."""
COMPACT = {"%Y%m%d": 8, "%Y%m%d%H": 10, "%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14}
"""Forms of dates that are whole numbers, and how many digits these have."""
_CODES = {
    **dict.fromkeys(("%d", "%m", "%H", "%I"), r"\d{1,2}"),
    **dict.fromkeys(("%y", "%M"), r"\d{2}"),
    **dict.fromkeys(("%a", "%b"), "[A-Za-z]+"),
    "%Y": r"\d{4}",
    "%S": r"\d{2}(?:\.\d+)?",
    "%p": "[AaPp][Mm]",
    "%z": r"[+-]\d{2}:?\d{2}",
    " ": r"\s+",
}
"""The text that a part of a known form stands for: strptime itself takes 24 for the year 24."""
_MOST_DATES = 0.9
"""The share of dates among numbers that are dates: those that follow one another have 31 dates in a
row at most."""


def date_of_form(value: str, form: str) -> str:
    """Return the date that a text, in SQL, of a form is: a timestamp in UTC, null if it is none."""
    form = " ".join(re.sub(r"\.%f|,(?= )| (GMT|UTC)\b", "", form).split())
    value = f"trim(regexp_replace({value}, '(,| GMT| UTC)( |[+-]|$)', ' \\2', 'g'))"
    fits = "true"
    if form in (*_KNOWN, *COMPACT):
        fits = f"regexp_full_match({value}, {text(_pattern(form))})"
    forms = [form]
    if "%S" in form:
        value = rf"regexp_replace({value}, '(:\d\d\.\d{{1,6}})\d*', '\1')"
        forms.append(form.replace("%S", "%S.%f"))
    if "%b" in form:
        forms += [shorter.replace("%b", "%B") for shorter in forms]
    parsed = f"try_strptime({value}, [{', '.join(map(text, forms))}])"
    zone = " at time zone 'UTC'" if "%z" in form else ""
    return f"case when {fits} then {parsed}{zone} end"


def dates_of_form(values: pl.Series, form: str) -> pl.Series:
    """Return the date of each text in a form, UTC; null if it is none.

    >>> dates_of_form(pl.Series(["31.12.2024 8", "soon"]), "%d.%m.%Y %H").to_list()
    [datetime.datetime(2024, 12, 31, 8, 0), None]
    """
    return computed(values.cast(pl.String), date_of_form("v", form)).cast(pl.Datetime("us"))


def compact_form(values: pl.Series) -> str | None:
    """Return the form of dates that are written as numbers; None if they are other numbers.

    Nine in ten must be dates of the years 1970 to 2100. Unix times of as many digits are seconds
    after May 2032.

    >>> [compact_form(pl.Series([number])) for number in (20241231, 202412312359, 1_700_000_000)]
    ['%Y%m%d', '%Y%m%d%H%M', None]
    """
    known = with_nulls(values)
    fractional = known.dtype.is_float() or known.dtype.is_decimal()
    if fractional and (known == known.floor()).all():
        known = known.cast(pl.Int64, strict=False)
    if not (known.dtype.is_integer() or known.dtype == pl.String):
        return None
    written = known.cast(pl.String).str.strip_suffix(".0").drop_nulls()
    for form in COMPACT:
        years = dates_of_form(written, form).dt.year()
        if years.is_between(1970, 2100).sum() >= _MOST_DATES * len(written) > 0:
            return form
    return None


def fitting_forms(values: pl.Series) -> list[str]:
    """Return the known forms that all dates of text have which are not of ISO 8601.

    >>> fitting_forms(pl.Series(["1/2/2024"])), fitting_forms(pl.Series(["1/2/2024", "1/13/2024"]))
    (['%m/%d/%Y', '%d/%m/%Y'], ['%m/%d/%Y'])
    """
    known = present(values)
    if known.dtype != pl.String:
        return []
    others = known.filter(dates_in(known).is_null())
    if not numbers_in(others).null_count():
        return []
    first = " ".join(re.sub(r"(,| GMT| UTC)(?=[ +-]|$)", " ", others[0]).split())
    return [
        form
        for form in _KNOWN
        if re.fullmatch(_pattern(form), first)
        and dates_of_form(others, form).dt.year().is_between(1900, 9999).fill_null(False).all()
    ]


@cache  # that of re has room for fewer
def _pattern(form: str) -> str:
    """Return the pattern of text in a known form."""
    if form in COMPACT:
        return rf"\d{{{COMPACT[form]}}}"
    codes = re.split(r"(%[A-Za-z]| )", form)
    return "".join(_CODES.get(code, re.escape(code)) for code in codes)


# --- Units of numbers -----------------------------------------------------------------------------

_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_FINER = 26 * 10**7
"""Numbers from so many units a second on are epochs in that unit: in the unit before they would be
times after the year 9999, which some logs have for a time without end."""
_FIRST_SECOND, _LAST_SECOND = 5 * 10**8, 5 * 10**9
"""Seconds from 1985 to 2128. In two units, times between them have no number in common."""
_BLOCK = 1 << 20


def units_per_second(time: int) -> int:
    """Return how many units of a time are a second, by its size.

    >>> [units_per_second(time) for time in (20_000, 1_700_000_000, 1_700_000_000_000)]
    [1, 1, 1000]
    """
    return max((unit for unit in _UNITS.values() if abs(time) >= _FINER * unit > _FINER), default=1)


def units_in(times: NDArray[np.int64]) -> dict[str, int]:
    """Return the units of Unix times between 1985 and 2128, each with the first such time."""
    found: dict[str, int] = {}
    for start in range(0, len(times), _BLOCK):
        block = np.asarray(times[start : start + _BLOCK])
        for unit in _UNITS.keys() - found.keys():
            first, last = _FIRST_SECOND * _UNITS[unit], _LAST_SECOND * _UNITS[unit]
            for time in block[(block >= first) & (block <= last)][:1]:
                found[unit] = int(time)
    return {unit: found[unit] for unit in _UNITS if unit in found}


def time_like(given: str | float, time: int) -> float:
    """Return a `Time` on the scale of another: a date in its likely unit, a number as it is.

    >>> time_like("1970-01-02", 1_700_000_000_000), time_like(7, 1_700_000_000_000)
    (86400000.0, 7.0)
    """
    return time_value(given) * (units_per_second(time) if isinstance(given, str) else 1)
