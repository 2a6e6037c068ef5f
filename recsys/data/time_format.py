"""Dates of another form than ISO 8601: the settings say which, and messages which it may be."""

from __future__ import annotations

from itertools import product

import polars as pl

from recsys.data.missing import without_missing_words
from recsys.errors import InputError

_DAYS = (
    *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y"),
    *("%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%m %d, %Y"),
    *("%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_KNOWN = (
    *(day + time for day, time in product(_DAYS, _TIMES)),
    *("%a %b %d %H:%M:%S %z %Y", "%a, %d %b %Y %H:%M:%S %z", "%a %b %d %H:%M:%S %Y"),
)
"""Forms that messages name where they fit; month and day are both tried first."""


def as_iso(values: pl.Series, form: str) -> pl.Series:
    """Rewrite text of a form as date-times in ISO 8601, in UTC if the form has a zone.

    Args:
        values: text; other types are unchanged, and so is text that has not the form.
        form: in the codes of strftime.

    Raises:
        InputError: the form has an hour without minutes.

    >>> as_iso(pl.Series(["31.12.2024 23:59", "2024-12-31"]), "%d.%m.%Y %H:%M").to_list()
    ['2024-12-31T23:59:00.000000', '2024-12-31']
    """
    text = without_missing_words(values)
    if text.dtype != pl.String:
        return values
    return _times(text, form).dt.strftime("%Y-%m-%dT%H:%M:%S%.6f").fill_null(text)


def form_hint(value: object) -> str:
    """Return which forms a date may have, for a message; empty if none is known.

    >>> form_hint("31.12.2024")
    " (a date of another form is read with --time-format '%d.%m.%Y', in Python time_format=)"
    >>> "'%m/%d/%Y %H:%M' or '%d/%m/%Y %H:%M'" in form_hint("1/2/2024 8:26")
    True
    >>> form_hint("yesterday")
    ''
    """
    if not isinstance(value, str):
        return ""
    text = pl.Series([value])
    # "24" would be the year 24 too.
    fitting = [form for form in _KNOWN if _times(text, form).dt.year().is_between(1900, 2200).any()]
    if not fitting:
        return ""
    forms = " or ".join(map(repr, fitting))
    return f" (a date of another form is read with --time-format {forms}, in Python time_format=)"


def _times(text: pl.Series, form: str) -> pl.Series:
    """Parse text as date-times, null where it has not the form."""
    try:
        times = text.str.to_datetime(form, time_unit="us", strict=False)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"data.time_format={form!r}: cannot be read: {error}") from error
    return times.dt.convert_time_zone("UTC") if "%z" in form else times
