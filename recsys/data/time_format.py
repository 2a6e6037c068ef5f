"""Dates of another form than ISO 8601: the settings say which, and messages which it may be."""

from __future__ import annotations

from itertools import product

import polars as pl

from recsys.data.missing import without_missing_words
from recsys.errors import InputError, first_line

_DAYS = (
    *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y"),
    *("%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%m %d, %Y"),
    *("%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_KNOWN = (
    *_DAYS,
    *(day + comma + time for day, comma, time in product(_DAYS, (" ", ", "), _TIMES)),
    *("%a %b %d %H:%M:%S %z %Y", "%a, %d %b %Y %H:%M:%S %z", "%a %b %d %H:%M:%S %Y"),
    "%d/%b/%Y:%H:%M:%S %z",
)
"""Forms that messages name where they fit; month and day are both tried first."""
_LIKELY = 1_000
"""The number of values that decide which forms a message names."""


def as_iso(values: pl.Series, form: str) -> pl.Series:
    """Rewrite dates of a form as date-times in ISO 8601, in UTC if the form has a zone.

    Args:
        values: text or numbers such as 20241231; other types are unchanged, and so is text that
            has not the form.
        form: in the codes of strftime.

    Raises:
        InputError: the form has an hour without minutes.

    >>> as_iso(pl.Series(["31.12.2024 23:59", "2024-12-31"]), "%d.%m.%Y %H:%M").to_list()
    ['2024-12-31T23:59:00.000000', '2024-12-31']
    >>> as_iso(pl.Series([20241231]), "%Y%m%d").to_list()
    ['2024-12-31T00:00:00.000000']
    """
    text = without_missing_words(values)
    if text.dtype.is_numeric():
        whole = text.cast(pl.Int64, strict=False)
        text = pl.select(
            pl.when(whole == text).then(whole.cast(pl.String)).otherwise(text.cast(pl.String))
        ).to_series()
    if text.dtype != pl.String:
        return values
    return _times(text, form).dt.strftime("%Y-%m-%dT%H:%M:%S%.6f").fill_null(text)


def are_days(values: pl.Series) -> bool:
    """Return whether all int64 values may be days, such as 20241231.

    >>> are_days(pl.Series([20241231, 20250101])), are_days(pl.Series([20241232, 20250101]))
    (True, False)
    """
    if values.is_empty() or not values.is_between(10**7, 10**8).all():
        return False
    return _fit(values.cast(pl.String), "%Y%m%d") == len(values)


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
    short = [form for form in best if form.replace("%B", "%b") not in best or "%B" not in form]
    forms = " or ".join(map(repr, short))
    return f" (a date of another form is read with --time-format {forms}, in Python time_format=)"


def _fit(text: pl.Series, form: str) -> int:
    """Return how many values have a form; "24" would be the year 24 too."""
    return int(_times(text, form).dt.year().is_between(1900, 2200).sum())


def _times(text: pl.Series, form: str) -> pl.Series:
    """Parse text as date-times, null where it has not the form."""
    try:
        # polars writes a fraction of any length so, of which %f would be the nanoseconds.
        times = text.str.to_datetime(form.replace(".%f", "%.f"), time_unit="us", strict=False)
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"data.time_format={form!r}: cannot be read: {first_line(error)}"
        ) from error
    return times.dt.convert_time_zone("UTC") if "%z" in form else times
