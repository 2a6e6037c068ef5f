"""Missing values in text: words such as NULL, and blanks around values."""

from __future__ import annotations

import polars as pl

MISSING_WORDS = (
    *("", "NULL", "Null", "null", "NA", "N/A", "n/a", "#N/A", "<NA>"),
    *("None", "NaN", "nan", "-nan", "NaT", r"\N", "undefined", "(not set)"),
)
"""The words that stand for a missing id or time, as pandas, databases and trackers write them."""


def without_missing_words(values: pl.Series) -> pl.Series:
    """Strip blanks around text, and make words for missing values null; other types are unchanged.

    >>> without_missing_words(pl.Series(["  u1 ", "NULL", " ", "nano", None])).to_list()
    ['u1', None, None, 'nano', None]
    """
    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    if values.dtype != pl.String:
        return values
    stripped = values.str.strip_chars()
    words = pl.Series(MISSING_WORDS, dtype=pl.String)
    return (
        pl.select(pl.when(~stripped.is_in(words.implode())).then(stripped))
        .to_series()
        .alias(values.name)
    )


def present_values(values: pl.Series) -> pl.Series:
    """Return the values of `without_missing_words` that are not missing.

    >>> present_values(pl.Series(["u1", "NULL", None])).to_list()
    ['u1']
    """
    return without_missing_words(values).drop_nulls()
