"""Times: forms of dates other than ISO 8601, and units of numbers."""

from __future__ import annotations

import re
from functools import cache

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import time_value
from recsys.data.database import computed, dates_in, numbers_in, present, reason, text, with_nulls
from recsys.errors import InputError

# --- Forms of dates -------------------------------------------------------------------------------

_DAYS = (
    *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y"),
    *("%y.%m.%d", "%y/%m/%d", "%y-%m-%d", "%d-%m-%y", "%m-%d-%y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m %d %Y", "%Y%m%d", "%d-%b-%Y", "%d-%b-%y"),
    *("%d %b %Y", "%b %d %Y", "%a %b %d %Y", "%a %d %b %Y"),
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p", " %H:%M:%S %z")
_KNOWN = (
    *(day + clock for clock in _CLOCKS for day in _DAYS),
    *("%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S %Y", "%d/%b/%Y:%H:%M:%S %z"),
)
"""Forms that are found, or named where several fit; month and day are both tried first. Commas and
the words GMT and UTC are left out, and seconds may have fractions."""
_COMPACT = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Forms of dates that are whole numbers, by the number of their digits."""
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
_WRITTEN_OUT = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%R": "%H:%M", "%D": "%m/%d/%y", "%h": "%b"}
_WRITTEN_OUT |= {".%f": "", ", ": " ", " GMT": " ", " UTC": " "}
_FIRST_YEAR, _LAST_YEAR = 1970, 2100
_MOST_DATES = 0.9
"""The share of dates among numbers that are dates: those that follow one another have 31 dates in a
row at most."""


def date_of_form(value: str, form: str) -> str:
    """Return the date that text of a form is, in SQL: a timestamp in UTC, null if it is none.

    Args:
        value: the text, in SQL.
        form: in the codes of strftime.
    """
    for short, long in _WRITTEN_OUT.items():
        form = form.replace(short, long)
    form = " ".join(form.split())
    value = f"trim(regexp_replace({value}, '(,| GMT| UTC)( |[+-]|$)', ' \\2', 'g'))"
    fits = "true"
    if form in _KNOWN or is_compact(form):
        fits = f"regexp_full_match({value}, {text(_pattern(form))})"
    forms = [form]
    if "%S" in form:
        value = rf"regexp_replace({value}, '(:\d\d\.\d{{1,6}})\d*', '\1')"
        forms.append(form.replace("%S", "%S.%f"))
    if "%b" in form:
        forms += [each.replace("%b", "%B") for each in forms]
    parsed = f"try_strptime({value}, [{', '.join(map(text, forms))}])"
    if "%a" in form:  # DuckDB reads any weekday
        fits += f" and contains({value}, strftime({parsed}, '%a'))"
    zone = " at time zone 'UTC'" if "%z" in form else ""
    return f"case when {fits} then {parsed}{zone} end"


def dates_of_form(values: pl.Series, form: str) -> pl.Series:
    """Return the date of each text in a form, UTC; null if it is none.

    Raises:
        InputError: the form has codes that cannot be read.

    >>> dates_of_form(pl.Series(["31.12.2024 8", "soon"]), "%d.%m.%Y %H").to_list()
    [datetime.datetime(2024, 12, 31, 8, 0), None]
    """
    try:
        return computed(values.cast(pl.String), date_of_form("v", form)).cast(pl.Datetime("us"))
    except duckdb.Error as error:
        raise InputError(f"data.time_format={form!r}: cannot be read: {reason(error)}") from error


def compact_form(values: pl.Series) -> str | None:
    """Return the form of dates that are written as numbers; None if they are other numbers.

    Nine in ten must be dates of the years 1970 to 2100. Unix times of as many digits are seconds
    after May 2032.

    >>> [compact_form(pl.Series([number])) for number in (20241231, 202412312359, 1_700_000_000)]
    ['%Y%m%d', '%Y%m%d%H%M', None]
    """
    written = _written(values).drop_nulls()
    if written.dtype != pl.String:
        return None
    lengths = written.str.len_bytes()
    for digits, form in _COMPACT.items():
        if (lengths == digits).sum() >= _MOST_DATES * len(written) > 0:
            years = dates_of_form(written, form).dt.year()
            if years.is_between(_FIRST_YEAR, _LAST_YEAR).sum() >= _MOST_DATES * len(written):
                return form
    return None


def fitting_forms(values: pl.Series) -> list[str]:
    """Return the known forms that all dates of text have which are not of ISO 8601.

    >>> fitting_forms(pl.Series(["1/2/2024"])), fitting_forms(pl.Series(["1/2/2024", "1/13/2024"]))
    (['%m/%d/%Y', '%d/%m/%Y'], ['%m/%d/%Y'])
    >>> fitting_forms(pl.Series(["31.12.2024", "soon"])), fitting_forms(pl.Series(["2024-12-31"]))
    ([], [])
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


def sure_form(values: pl.Series) -> str | None:
    """Return the form of dates if their values leave no doubt, and it is not ISO 8601.

    >>> sure_form(pl.Series([20241231])), sure_form(pl.Series(["31.12.2024 8:26"]))
    ('%Y%m%d', '%d.%m.%Y %H:%M')
    >>> sure_form(pl.Series(["1/2/2024"])), sure_form(pl.Series(["31.12.24"]))
    (None, None)
    """
    forms = fitting_forms(values)
    return forms[0] if len(forms) == 1 else compact_form(values)


def is_compact(form: str | None) -> bool:
    """Return whether dates of a form are whole numbers."""
    return form in _COMPACT.values()


def form_hint(values: pl.Series) -> str:
    """Return which forms the first of some dates may have, for a message; empty if none is known.

    >>> "'%m/%d/%Y %H:%M' or '%d/%m/%Y %H:%M'" in form_hint(pl.Series(["1/2/2024 8:26"]))
    True
    """
    forms = " or ".join(map(repr, fitting_forms(values.head(1))))
    return f" (a date of another form needs --time-format {forms})" if forms else ""


def _written(values: pl.Series) -> pl.Series:
    """Return text without words for missing values, and numbers as text; other types unchanged."""
    known = with_nulls(values)
    if not known.dtype.is_numeric():
        return known
    whole = known.cast(pl.Int64, strict=False)
    return pl.select(
        pl.when(whole == known).then(whole.cast(pl.String)).otherwise(known.cast(pl.String))
    ).to_series()


@cache  # that of re has room for fewer
def _pattern(form: str) -> str:
    """Return the pattern of text in a known form."""
    if is_compact(form):
        return rf"\d{{{next(digits for digits, known in _COMPACT.items() if known == form)}}}"
    codes = re.split(r"(%[A-Za-z]| )", form)
    return "".join(_CODES.get(code, re.escape(code)) for code in codes)


# --- Units of numbers -----------------------------------------------------------------------------

_FINER_UNITS = (
    (26 * 10**10, 10**3, "milliseconds"),
    (26 * 10**13, 10**6, "microseconds"),
    (26 * 10**16, 10**9, "nanoseconds"),
)
"""Numbers from the first on are epochs in such units, so many in a second: in the unit before they
would be times after the year 9999, which some logs have for a time without end."""
_UNITS = ((1, "seconds"), *((units, name) for _, units, name in _FINER_UNITS))
_FIRST_SECOND, _LAST_SECOND = 5 * 10**8, 5 * 10**9
"""Seconds from 1985 to 2128. In two units, times between them have no number in common."""
_BLOCK = 1 << 20


def units_per_second(time: int) -> int:
    """Return how many units of a time are a second, by its size.

    >>> [units_per_second(time) for time in (20_000, 1_700_000_000, 1_700_000_000_000)]
    [1, 1, 1000]
    """
    return max((units for limit, units, _ in _FINER_UNITS if abs(time) >= limit), default=1)


def units_in(times: NDArray[np.int64]) -> dict[str, int]:
    """Return the units of Unix times between 1985 and 2128, each with the first such time.

    >>> units_in(np.array([7, 1_700_000_000, 1_700_000_000_000, 1_700_000_001]))
    {'seconds': 1700000000, 'milliseconds': 1700000000000}
    """
    found: dict[str, int] = {}
    for start in range(0, len(times), _BLOCK):
        block = np.asarray(times[start : start + _BLOCK])
        least, most = block.min(), block.max()
        for units, name in _UNITS:
            first, last = _FIRST_SECOND * units, _LAST_SECOND * units
            if name not in found and most >= first and least <= last:
                such = block[(block >= first) & (block <= last)]
                if len(such):
                    found[name] = int(such[0])
    return found


def in_unit(times: NDArray[np.int64], unit: str, other: str) -> NDArray[np.int64]:
    """Convert those Unix times between 1985 and 2128 that are in a unit to another one.

    >>> in_unit(np.array([7, 1_700_000_000, 1_700_000_000_000]), "seconds", "milliseconds").tolist()
    [7, 1700000000000, 1700000000000]
    """
    names = {name: units for units, name in _UNITS}
    old, new = names[unit], names[other]
    such = (times >= _FIRST_SECOND * old) & (times <= _LAST_SECOND * old)
    return np.where(such, times // (old // new) if new < old else times * (new // old), times)


def time_like(given: str | float, time: int) -> float:
    """Return a `Time` on the scale of another: a date in its likely unit, a number as it is.

    >>> time_like("1970-01-02", 1_700_000_000_000), time_like(7, 1_700_000_000_000)
    (86400000.0, 7.0)
    """
    units = units_per_second(time) if isinstance(given, str) else 1
    return time_value(given) * units


def not_before(given: str | float) -> str:
    """Return whether ``timestamp`` is not before a `Time`, in SQL.

    A date is put on the scale of each row's time, a number is compared as it is.
    """
    earliest = time_value(given)
    late = f"(timestamp >= {earliest!r})"
    if isinstance(given, str):
        for limit, units, _ in _FINER_UNITS:
            finer = f"timestamp >= {earliest * units!r}"
            late = f"case when abs(timestamp) < {limit} then {late} else {finer} end"
    return late
