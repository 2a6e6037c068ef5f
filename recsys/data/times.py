"""Times: forms of dates other than ISO 8601, days and times of day, units of numbers."""

from __future__ import annotations

import re
from datetime import time
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
_NOTHING = r"^[0\s./,:-]*$"
"""Text that stands for an unknown date of another form, such as 00/00/0000."""
_NO_DATE = r"^(?:-?0+|-1|9+|\d{4}(?:0\d|1[0-2])00(?:\d\d){0,3})$"
"""Numbers that stand for an unknown date among others, such as 0, 99999999 and 20240000."""
_FIRST_YEAR, _LAST_YEAR, _UNKNOWN_YEAR = 1970, 2100, 9999
_LIKELY_YEAR = r"^(?:19[7-9]|20\d|210)"
_MISTAKES = 0.1
"""The share of other numbers among dates: with more of them, none is taken for a date. Numbers that
follow one another have 31 dates in a row at most."""
_LIKELY = 1_000
"""The number of values that decide which forms a message names."""


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


def as_iso(values: pl.Series, form: str) -> pl.Series:
    """Rewrite dates of a form as date-times in ISO 8601, in UTC if the form has a zone.

    Args:
        values: text or numbers such as 20241231; other types are unchanged, and so is text that
            is not in the form.
        form: in the codes of strftime.

    Raises:
        InputError: the form has codes that cannot be read.

    >>> as_iso(pl.Series(["31.12.2024 23:59", "2024-12-31"]), "%d.%m.%Y %H:%M").to_list()
    ['2024-12-31T23:59:00.000000', '2024-12-31']
    """
    written = _written(values)
    if written.dtype != pl.String:
        return values
    return dates_of_form(written, form).dt.strftime("%Y-%m-%dT%H:%M:%S%.6f").fill_null(written)


def compact_form(values: pl.Series) -> str | None:
    """Return the form of dates that are written as numbers; None if they are other numbers.

    Dates are of the years 1970 to 2100. Numbers that stand for an unknown date may be among them,
    and one mistake in ten. Unix times of as many digits are seconds after May 2032.

    >>> [compact_form(pl.Series([number])) for number in (20241231, 202412312359, 1_700_000_000)]
    ['%Y%m%d', '%Y%m%d%H%M', None]
    """
    written = _written(values).drop_nulls()
    if written.dtype != pl.String or not written.str.contains(_LIKELY_YEAR).any():
        return None
    usual = {form: _are_usual(written, form) for form in _compact_forms(written)}
    form = max(usual, key=lambda form: usual[form].sum(), default=None)
    if form is None or not usual[form].any():
        return None
    mistakes = int((~_is_unknown(written.filter(~usual[form]))).sum())
    return form if mistakes <= _MISTAKES * len(written) else None


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
    others = others.filter(~others.str.contains(_NOTHING))
    if not numbers_in(others).null_count():
        return []
    return [form for form in _alike(others.head(1)) if _fit(others, form) == len(others)]


def sure_form(values: pl.Series) -> str | None:
    """Return the form of dates if their values leave no doubt, and it is not ISO 8601.

    >>> sure_form(pl.Series([20241231])), sure_form(pl.Series(["31.12.2024 8:26"]))
    ('%Y%m%d', '%d.%m.%Y %H:%M')
    >>> sure_form(pl.Series(["1/2/2024"])), sure_form(pl.Series(["31.12.24"]))
    (None, None)
    """
    forms = fitting_forms(values)
    return forms[0] if len(forms) == 1 else compact_form(values)


def tells_no_form(values: pl.Series) -> bool:
    """Return whether others must tell the form of times.

    All are missing or stand for an unknown date, or are dates of several forms.

    >>> tells_no_form(pl.Series([0, None, 99991231])), tells_no_form(pl.Series(["1/13/2024"]))
    (True, False)
    """
    written = _written(values).drop_nulls()
    if written.is_empty():
        return True
    is_text = written.dtype == pl.String
    return is_text and (bool(_is_unknown(written).all()) or len(fitting_forms(values)) > 1)


def first_date(values: pl.Series, form: str) -> object:
    """Return the first value that is a date of a `sure_form`.

    >>> first_date(pl.Series([0, 20241231]), "%Y%m%d")
    20241231
    """
    known = present(values)
    written = _written(known)
    usual = _are_usual(written, form)
    return known.filter(usual if usual.any() else dates_of_form(written, form).is_not_null())[0]


def is_compact(form: str | None) -> bool:
    """Return whether dates of a form are whole numbers."""
    return form in _COMPACT.values()


def form_hint(values: pl.Series) -> str:
    """Return which forms dates may have, for a message; empty if none is known.

    >>> "'%m/%d/%Y %H:%M' or '%d/%m/%Y %H:%M'" in form_hint(pl.Series(["1/2/2024 8:26"]))
    True
    """
    some = values.head(_LIKELY)
    if some.dtype != pl.String:
        return ""
    fitting = {form: count for form in _alike(some.head(20)) if (count := _fit(some, form))}
    best = [repr(form) for form, count in fitting.items() if count == max(fitting.values())]
    if not best:
        return ""
    return (
        " (a date of another form is read if its log is prepared with "
        f"--time-format {' or '.join(best)}, in Python time_format=)"
    )


def _is_unknown(written: pl.Series) -> pl.Series:
    """Return which text stands for an unknown date, such as 0, or is a date of another year."""
    unknown = written.str.contains(_NO_DATE)
    for form in _compact_forms(written):
        unknown |= dates_of_form(written, form).is_not_null() & ~_are_usual(written, form)
    return unknown


def _compact_forms(written: pl.Series) -> list[str]:
    """Return the forms of dates as numbers that have as many digits as some of the text."""
    lengths = set(written.str.len_bytes().unique())
    return [form for digits, form in _COMPACT.items() if digits in lengths]


def _are_usual(written: pl.Series, form: str) -> pl.Series:
    years = dates_of_form(written, form).dt.year()
    return years.is_between(_FIRST_YEAR, _LAST_YEAR).fill_null(value=False)


def _written(values: pl.Series) -> pl.Series:
    """Return text without words for missing values, and numbers as text; other types unchanged."""
    known = with_nulls(values)
    if not known.dtype.is_numeric():
        return known
    whole = known.cast(pl.Int64, strict=False)
    return pl.select(
        pl.when(whole == known).then(whole.cast(pl.String)).otherwise(known.cast(pl.String))
    ).to_series()


def _alike(values: pl.Series) -> list[str]:
    """Return the known forms that a value looks like."""
    some = [
        " ".join(re.sub(r"(,| GMT| UTC)(?=[ +-]|$)", " ", v).split()) for v in values.drop_nulls()
    ]
    return [form for form in _KNOWN if any(re.fullmatch(_pattern(form), value) for value in some)]


@cache  # that of re has room for fewer
def _pattern(form: str) -> str:
    r"""Return the pattern of text in a known form.

    >>> print(_pattern("%d.%m.%Y %H:%M"))
    \d{1,2}\.\d{1,2}\.\d{4}\s+\d{1,2}:\d{2}
    """
    if is_compact(form):
        return rf"\d{{{next(digits for digits, known in _COMPACT.items() if known == form)}}}"
    codes = re.split(r"(%[A-Za-z]| )", form)
    return "".join(_CODES.get(code, re.escape(code)) for code in codes)


def _fit(values: pl.Series, form: str) -> int:
    """Return how many values have a form, in a year that is likely, or 9999 for an unknown one."""
    years = dates_of_form(values, form).dt.year()
    return int((years.is_between(1900, 2200) | (years == _UNKNOWN_YEAR)).sum())


# --- Days and times of day ------------------------------------------------------------------------

_DAY = r"^\d{4}-\d\d-\d\d(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00:?00)?)?$"
_CLOCK = r"^(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?$"
_LENGTHS = ("duration", "length", "runtime")
"""Columns that are called so have minutes and seconds."""


def holds_days(times: pl.Series) -> bool:
    """Return whether times are dates, whatever their form, without a time of day or at midnight."""
    if times.dtype == pl.Datetime:
        return bool((times.dt.time() == time()).all())
    forms = *fitting_forms(times), compact_form(times)  # whichever fits, the days stay days
    written = times if forms[0] is None else as_iso(times, forms[0])
    return written.dtype == pl.Date or _all_match(written, _DAY)


def is_clock(column: pl.Series) -> bool:
    """Return whether a column holds times of day."""
    lengths = any(word in column.name.lower() for word in _LENGTHS)
    return column.dtype == pl.Time or (not lengths and _all_match(column, _CLOCK))


def _all_match(values: pl.Series, pattern: str) -> bool:
    known = present(values) if values.dtype == pl.String else values.clear()
    return len(known) > 0 and bool(known.str.contains(pattern).all())


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
