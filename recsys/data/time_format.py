"""Dates of another form than ISO 8601: the settings say which, and messages which it may be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import product

import polars as pl

from recsys.data.missing import present_values, without_missing_words
from recsys.data.text_values import dates_in, numbers_in
from recsys.errors import InputError, first_line

_DAYS = (
    *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y"),
    *("%y.%m.%d", "%y/%m/%d", "%y-%m-%d", "%d-%m-%y", "%m-%d-%y"),
    *("%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%m %d, %Y", "%Y%m%d"),
    *("%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%b %d %Y"),
    *("%a %b %d %Y", "%a, %d %b %Y"),
)
_TIMES = (
    *("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%H", "%I:%M %p", "%I:%M:%S %p", "%I %p"),
    *("%H:%M:%S %z", "%H:%M:%S GMT", "%H:%M:%S GMT%z"),
)
_KNOWN = (
    *_DAYS,
    *(day + comma + time for day, comma, time in product(_DAYS, (" ", ", "), _TIMES)),
    *("%a %b %d %H:%M:%S %z %Y", "%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S UTC %Y"),
    *("%d/%b/%Y:%H:%M:%S %z", "[%d/%b/%Y:%H:%M:%S %z]", "%d/%b/%Y:%H:%M:%S"),
)
"""Forms that are found, or that messages name where several fit; month and day are both tried
first."""
_CODES = {
    **dict.fromkeys(("%d", "%m", "%H", "%I"), r"\d{1,2}"),
    **dict.fromkeys(("%y", "%M", "%S"), r"\d{2}"),
    **dict.fromkeys(("%a", "%b", "%B"), "[A-Za-z]+"),
    "%Y": r"\d{4}",
    ".%f": r"(?:\.\d+)?",
    "%p": "[AaPp][Mm]",
    "%z": r"[+-]\d{2}:?\d{2}",
    " ": r"\s+",
}
"""The text that a part of a known form stands for. polars is less strict: 31.12.24 would be of the
year 24, and 12/31/2010 the hour 10 of a day of 2020, since it does not ask for blanks."""
_NOTHING = r"^[0\s./,:-]*$"
"""Text that stands for an unknown date of another form, such as 00/00/0000."""
_LIKELY = 1_000
"""The number of values that decide which forms a message names."""
_FIRST_YEAR, _LAST_YEAR, _UNKNOWN_YEAR = 1970, 2100, 9999
_COMPACT = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Forms of dates that are whole numbers, by the number of their digits."""
_NO_DATE = r"^(?:-?0+|-1|9+|\d{4}(?:0\d|1[0-2])00(?:\d\d){0,3})$"
"""Numbers that stand for an unknown date among others, such as 0, 99999999 and 20240000."""
_MISTAKES = 0.1
"""The share of other numbers among dates: with more of them, none is taken for a date. Numbers that
follow one another have 31 dates in a row at most."""


def as_iso(values: pl.Series, form: str) -> pl.Series:
    """Rewrite dates of a form as date-times in ISO 8601, in UTC if the form has a zone.

    Args:
        values: text or numbers such as 20241231; other types are unchanged, and so is text that
            is not in the form.
        form: in the codes of strftime.

    Raises:
        InputError: polars cannot read the form.

    >>> as_iso(pl.Series(["31.12.2024 23:59", "2024-12-31"]), "%d.%m.%Y %H:%M").to_list()
    ['2024-12-31T23:59:00.000000', '2024-12-31']
    >>> as_iso(pl.Series([20241231]), "%Y%m%d").to_list()
    ['2024-12-31T00:00:00.000000']
    """
    text = _written(values)
    if text.dtype != pl.String:
        return values
    return _times(text, form).dt.strftime("%Y-%m-%dT%H:%M:%S%.6f").fill_null(text)


def compact_form(values: pl.Series) -> str | None:
    """Return the form of dates that are written as numbers; None if they are other numbers.

    Dates are of the years 1970 to 2100. Numbers that stand for an unknown date may be among them,
    also 19000101 or 99991231, and one mistake in ten: they are refused by their rows, or read as
    the dates that they are. Other numbers do not look so. Unix times of as many digits are
    seconds after May 2032, and of a hundred of them one ends in a month, a day and an hour.

    Args:
        values: numbers or text; missing ones do not count.

    >>> [compact_form(pl.Series([time])) for time in (20241231, 2024123123, 202412312359)]
    ['%Y%m%d', '%Y%m%d%H', '%Y%m%d%H%M']
    >>> compact_form(pl.Series([20241231, 20241232])), compact_form(pl.Series([1_700_000_000]))
    (None, None)
    >>> compact_form(pl.Series([20241231, 0, 99991231]))
    '%Y%m%d'
    """
    text = _written(values).drop_nulls()
    if text.dtype != pl.String:
        return None
    usual = {form: _is_usual(text, form) for form in _COMPACT.values()}
    form = max(usual, key=lambda each: usual[each].sum())
    if not usual[form].any():
        return None
    mistakes = int((~_is_unknown(text.filter(~usual[form]))).sum())
    return form if mistakes <= _MISTAKES * len(text) else None


def fitting_forms(values: pl.Series) -> list[str]:
    """Return the known forms that all dates of text have which are not of ISO 8601.

    >>> fitting_forms(pl.Series(["31.12.2024", "2024-12-31", None]))
    ['%d.%m.%Y']
    >>> fitting_forms(pl.Series(["1/2/2024"])), fitting_forms(pl.Series(["1/2/2024", "1/13/2024"]))
    (['%m/%d/%Y', '%d/%m/%Y'], ['%m/%d/%Y'])
    >>> fitting_forms(pl.Series(["31.12.2024", "soon"])), fitting_forms(pl.Series(["2024-12-31"]))
    ([], [])
    """
    text = present_values(values)
    if text.dtype != pl.String:
        return []
    others = text.filter(dates_in(text).is_null())
    others = others.filter(~others.str.contains(_NOTHING))
    if not numbers_in(others).null_count():
        return []
    # Few look like the first value, and that is seen fast.
    alike = _alike(others.head(1))
    return _shortest([form for form in alike if _fit(others, form) == len(others)])


def sure_form(values: pl.Series) -> str | None:
    """Return the form of dates if their values leave no doubt, and it is not ISO 8601.

    Args:
        values: numbers that may be dates (`compact_form`), or text (`fitting_forms`).

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

    >>> tells_no_form(pl.Series([0, None, 99991231])), tells_no_form(pl.Series([0, 1_699_999_999]))
    (True, False)
    >>> tells_no_form(pl.Series(["1/2/2024"])), tells_no_form(pl.Series(["1/13/2024"]))
    (True, False)
    """
    text = _written(values).drop_nulls()
    if text.is_empty():
        return True
    return text.dtype == pl.String and (_is_unknown(text).all() or len(fitting_forms(values)) > 1)


def first_date(values: pl.Series, form: str) -> object:
    """Return the first value that is a date of a `sure_form`.

    >>> first_date(pl.Series([0, 99991231, 20241231]), "%Y%m%d")
    20241231
    >>> first_date(pl.Series(["2024-12-30", "31.12.2024"]), "%d.%m.%Y")
    '31.12.2024'
    """
    present = present_values(values)
    text = _written(present)
    usual = _is_usual(text, form) if is_compact(form) else _times(text, form).is_not_null()
    return present.filter(usual)[0]


def is_compact(form: str | None) -> bool:
    """Return whether dates of a form are whole numbers."""
    return form in _COMPACT.values()


def _is_usual(text: pl.Series, form: str) -> pl.Series:
    """Return which text is a date of a compact form, of the years 1970 to 2100."""
    return _years(text, form).is_between(_FIRST_YEAR, _LAST_YEAR).fill_null(value=False)


def _is_unknown(text: pl.Series) -> pl.Series:
    """Return which text stands for an unknown date, such as 0, or is a date of another year."""
    unknown = text.str.contains(_NO_DATE)
    for form in _COMPACT.values():
        years = _years(text, form)
        unknown |= years.is_not_null() & ~years.is_between(_FIRST_YEAR, _LAST_YEAR)
    return unknown


def _years(text: pl.Series, form: str) -> pl.Series:
    """Return the years of dates of a compact form; null for anything else."""
    length = next(digits for digits, known in _COMPACT.items() if known == form)
    fitting = pl.select(pl.when(text.str.len_bytes() == length).then(text)).to_series()
    return _times(fitting, form).dt.year()


def form_hint(values: pl.Series) -> str:
    """Return which forms dates may have, for a message; empty if none is known.

    >>> "prepared with --time-format '%d.%m.%Y', in" in form_hint(pl.Series(["31.12.2024"]))
    True
    >>> "'%m/%d/%Y %H:%M' or '%d/%m/%Y %H:%M'" in form_hint(pl.Series(["1/2/2024 8:26"]))
    True
    >>> " or " in form_hint(pl.Series(["1/2/2024 8:26", "1/13/2024 8:26"]))
    False
    >>> form_hint(pl.Series(["yesterday"]))
    ''
    """
    text = values.head(_LIKELY)
    if text.dtype != pl.String:
        return ""
    fitting = {form: count for form in _alike(text.head(20)) if (count := _fit(text, form))}
    if not fitting:
        return ""
    best = [form for form, count in fitting.items() if count == max(fitting.values())]
    forms = " or ".join(map(repr, _shortest(best)))
    return (
        " (a date of another form is read if its log is prepared with "
        f"--time-format {forms}, in Python time_format=)"
    )


def _shortest(forms: Sequence[str]) -> list[str]:
    """Leave out forms that have another of them with short names of months or without fractions."""
    shorter = {form: form.replace("%B", "%b").replace(".%f", "") for form in forms}
    return [form for form in forms if shorter[form] == form or shorter[form] not in forms]


def _written(values: pl.Series) -> pl.Series:
    """Return text without words for missing values, and numbers as text; other types unchanged."""
    text = without_missing_words(values)
    if not text.dtype.is_numeric():
        return text
    whole = text.cast(pl.Int64, strict=False)
    return pl.select(
        pl.when(whole == text).then(whole.cast(pl.String)).otherwise(text.cast(pl.String))
    ).to_series()


def _alike(text: pl.Series) -> list[str]:
    """Return the known forms that a value looks like."""
    values = text.drop_nulls().to_list()
    return [form for form in _KNOWN if any(map(_pattern(form).search, values))]


@cache  # that of re has room for fewer
def _pattern(form: str) -> re.Pattern[str]:
    r"""Return the pattern of text in a known form.

    >>> print(_pattern("%d.%m.%Y %H:%M").pattern)
    ^\d{1,2}\.\d{1,2}\.\d{4}\s+\d{1,2}:\d{2}$
    """
    parts = re.split(r"(\.%f|%[A-Za-z]| )", form)
    return re.compile("^" + "".join(_CODES.get(part, re.escape(part)) for part in parts) + "$")


def _fit(text: pl.Series, form: str) -> int:
    """Return how many values have a form, in a year that is likely, or 9999 for an unknown one."""
    years = _times(text, form).dt.year()
    return int((years.is_between(1900, 2200) | (years == _UNKNOWN_YEAR)).sum())


def _times(text: pl.Series, form: str) -> pl.Series:
    """Parse text as date-times, null where it is not in the form."""
    if form in _KNOWN:
        text = pl.select(pl.when(text.str.contains(_pattern(form).pattern)).then(text)).to_series()
    if ("%H" in form or "%I" in form) and "%M" not in form:  # which polars cannot read
        text, form = ("00 " + text).alias(text.name), f"%M {form}"
    try:
        # polars writes a fraction of any length so, of which %f would be the nanoseconds.
        times = text.str.to_datetime(form.replace(".%f", "%.f"), time_unit="us", strict=False)
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"data.time_format={form!r}: cannot be read: {first_line(error)}"
        ) from error
    return times.dt.convert_time_zone("UTC") if "%z" in form else times
