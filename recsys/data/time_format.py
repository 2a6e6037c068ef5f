"""Dates of another form than ISO 8601: the settings say which, and messages which it may be."""

from __future__ import annotations

from itertools import product

import polars as pl

from recsys.data.missing import without_missing_words
from recsys.errors import InputError, first_line

_DAYS = (
    *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y"),
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
"""Forms that messages name where they fit; month and day are both tried first."""
_LIKELY = 1_000
"""The number of values that decide which forms a message names."""
_FIRST_YEAR, _LAST_YEAR = 1970, 2100
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
    years = {form: _years(text, length, form) for length, form in _COMPACT.items()}
    dates = {form: found.is_between(_FIRST_YEAR, _LAST_YEAR).sum() for form, found in years.items()}
    form = max(dates, key=dates.__getitem__)
    if not dates[form]:
        return None
    usual = years[form].is_between(_FIRST_YEAR, _LAST_YEAR).fill_null(value=False)
    others = pl.DataFrame({"text": text, **years}).filter(~usual)
    far = pl.any_horizontal(~pl.col(*years).is_between(_FIRST_YEAR, _LAST_YEAR)).fill_null(False)
    mistakes = others.filter(~(far | pl.col("text").str.contains(_NO_DATE)))
    return form if len(mistakes) <= _MISTAKES * len(text) else None


def is_compact(form: str) -> bool:
    """Return whether dates of a form are whole numbers."""
    return form in _COMPACT.values()


def _years(text: pl.Series, length: int, form: str) -> pl.Series:
    """Return the years of dates of a form with so many digits; null for anything else."""
    fitting = pl.select(pl.when(text.str.len_bytes() == length).then(text)).to_series()
    return _times(fitting, form).dt.year()


def form_hint(values: pl.Series) -> str:
    """Return which forms dates may have, for a message; empty if none is known.

    >>> form_hint(pl.Series(["31.12.2024"]))
    " (a date of another form is read with --time-format '%d.%m.%Y', in Python time_format=)"
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
    fitting = {form: count for form in _KNOWN if (count := _fit(text, form))}
    if not fitting:
        return ""
    best = [form for form, count in fitting.items() if count == max(fitting.values())]
    short = [form for form in best if _shorter(form) == form or _shorter(form) not in best]
    forms = " or ".join(map(repr, short))
    return f" (a date of another form is read with --time-format {forms}, in Python time_format=)"


def _shorter(form: str) -> str:
    """Return a form with short names of months and without fractions, which may fit as well."""
    return form.replace("%B", "%b").replace(".%f", "")


def _written(values: pl.Series) -> pl.Series:
    """Return text without words for missing values, and numbers as text; other types unchanged."""
    text = without_missing_words(values)
    if not text.dtype.is_numeric():
        return text
    whole = text.cast(pl.Int64, strict=False)
    return pl.select(
        pl.when(whole == text).then(whole.cast(pl.String)).otherwise(text.cast(pl.String))
    ).to_series()


def _fit(text: pl.Series, form: str) -> int:
    """Return how many values have a form; "24" would be the year 24 too."""
    return int(_times(text, form).dt.year().is_between(1900, 2200).sum())


def _times(text: pl.Series, form: str) -> pl.Series:
    """Parse text as date-times, null where it is not in the form."""
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
