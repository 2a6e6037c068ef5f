"""Numbers and dates in columns of text."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

_ISO_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M%#z",
)
_FULL_YEAR = r"^\d{4}"
"""polars reads fewer digits too: 15-03-24 would be of the year 15."""
_SHORT_ISO = r"^(?:\d{8}T\d{4}|\d{4}-\d{2}-\d{2}T\d{2}(?:$|Z|[+-]))"
"""Times without marks between the digits, or of an hour without minutes."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What all values of a text column say of its type; parts of a column add up."""

    missing: int = 0
    """The number of missing values."""
    not_integers: int = 0
    """The number of values that are no integers of 64 bits, missing ones included; likewise: """
    not_numbers: int = 0
    not_dates: int = 0

    def __add__(self, other: TextFacts) -> TextFacts:
        return TextFacts(
            self.missing + other.missing,
            self.not_integers + other.not_integers,
            self.not_numbers + other.not_numbers,
            self.not_dates + other.not_dates,
        )

    @property
    def unread_numbers(self) -> int:
        """The number of values that are null once the column is parsed as numbers."""
        return self.not_numbers if self.not_integers else 0

    @property
    def as_dates(self) -> bool:
        """Whether more values of a column of times are dates than numbers."""
        return self.not_dates < self.unread_numbers


def text_facts(text: pl.Series) -> TextFacts:
    """Return the facts of text without words for missing values."""
    not_integers = text.cast(pl.Int64, strict=False).null_count()
    if not not_integers:  # no integer is a date
        return TextFacts(0, 0, 0, len(text))
    not_numbers = text.cast(pl.Float64, strict=False).null_count()
    return TextFacts(text.null_count(), not_integers, not_numbers, dates_in(text).null_count())


def numbers_in(text: pl.Series, facts: TextFacts | None = None) -> pl.Series:
    """Parse text as int64 if all of it is, else as float64; null if invalid.

    Args:
        text: the values.
        facts: those of the whole column, if the values are a part of it.
    """
    integers = text.cast(pl.Int64, strict=False)
    some = integers.null_count() if facts is None else facts.not_integers
    return text.cast(pl.Float64, strict=False) if some else integers


def dates_in(text: pl.Series) -> pl.Series:
    """Parse ISO 8601 text as UTC date-times, null if invalid; times without a zone are UTC.

    >>> dates_in(pl.Series(["2024-01-02 03", "20240102T030405Z", "soon"])).dt.hour().to_list()
    [3, 3, None]
    >>> dates_in(pl.Series(["15-03-24", "0015-03-24"])).dt.year().to_list()
    [None, 15]
    """
    text = (
        text.str.replace(r"^(\d{4}-\d{2}-\d{2}) +", "${1}T")
        .str.replace(r"(:\d{2}),(\d)", "${1}.${2}")
        .str.replace(r" *(?:UTC|GMT)$", "Z")
        .str.replace(r" +([+-]\d{2})", "${1}")
    )
    if text.str.contains(_SHORT_ISO).any():
        text = (
            text.str.replace(r"^(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})", "${1}-${2}-${3}T${4}:${5}")
            .str.replace(r"(T\d{2}:\d{2})(\d{2})", "${1}:${2}")
            .str.replace(r"(T\d{2})($|Z|[+-])", "${1}:00${2}")
        )
    text = pl.select(pl.when(text.str.contains(_FULL_YEAR)).then(text)).to_series()
    times = pl.Series(text.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(text))
    for form in _ISO_FORMATS:
        if times.null_count():
            found = text.str.to_datetime(form, time_unit="us", strict=False)
            if form.endswith("z"):
                found = found.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
            times = times.fill_null(found)
    return times
