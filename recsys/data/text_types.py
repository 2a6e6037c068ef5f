"""The types of columns of text: integers where every value is one."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from recsys.data.missing import MISSING_WORDS

_INTEGER = r"^(?:0|-?[1-9][0-9]{0,17})$"
_SAMPLED_ROWS = 1_000


def typed(table: pl.DataFrame) -> pl.DataFrame:
    """Strip blanks around text, and make columns integers if every value is a plain integer.

    Words for missing values count as integers, unless a column has nothing else; "007" does not.

    >>> typed(pl.DataFrame({"a": ["1", " 2 "], "b": ["007", "8"], "c": ["3", "NULL"]})).rows()
    [(1, '007', 3), (2, '8', None)]
    """
    table = table.select(pl.all().str.strip_chars())
    # Most columns of text show it in their first rows.
    likely, _ = likely_integers(table.head(_SAMPLED_ROWS))
    return _with_integers(table, likely_integers(table.select(likely))[1])


def typed_part(part: pl.DataFrame, integer: Collection[str]) -> pl.DataFrame:
    """Convert a part of a table as `typed` does, given the columns that are integers."""
    return _with_integers(part.select(pl.all().str.strip_chars()), integer)


def _with_integers(table: pl.DataFrame, integer: Collection[str]) -> pl.DataFrame:
    return table.with_columns(pl.col(name).cast(pl.Int64, strict=False) for name in integer)


def integer_columns(table: pl.LazyFrame) -> list[str]:
    """Return the columns that `typed` makes integers, without holding the table in memory."""
    names = table.collect_schema().names()
    stripped = pl.all().str.strip_chars()
    words = pl.Series(MISSING_WORDS).implode()
    plain = table.select(stripped.str.contains(_INTEGER).any())
    others = table.select((stripped.str.contains(_INTEGER) | stripped.is_in(words)).all())
    found, fitting = pl.collect_all([plain, others], engine="streaming")
    return [name for name in names if found[name].item() and fitting[name].item()]


def likely_integers(batch: pl.DataFrame) -> tuple[set[str], set[str]]:
    """Return the columns of text that `typed` might make integers, and those that have an integer.

    Of a table that is read in batches, `typed` makes integers of the columns that are among the
    first in every batch and among the second in one.
    """
    text = pl.all().str.strip_chars()
    plain = text.str.contains(_INTEGER)
    words = pl.Series(MISSING_WORDS).implode()
    others = batch.select(text.filter(~plain).unique().is_in(words).all())
    integers = {name for name in others.columns if others[name].item()}
    some = batch.select(integers).select(plain.any())
    return integers, {name for name in some.columns if some[name].item()}
