"""Row filters: drop rows that are not interactions by declared rules, and count them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from recsys.config import DropRows
from recsys.data.log_columns import has_text, plain_text
from recsys.data.missing import without_missing_words
from recsys.errors import InputError


def drop_rows(
    table: pl.DataFrame, rules: Sequence[DropRows], origin: str
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Drop the rows that match a rule.

    Args:
        table: a table with the columns of the rules.
        rules: the rules; a row counts for the first one that it matches.
        origin: the name of the table in messages.

    Returns:
        The other rows, in their order, and the number of dropped rows for each reason.

    Raises:
        InputError: a column with a numeric rule has other values, one with a pattern has no text,
            or a pattern is not a regular expression.

    >>> lines = pl.DataFrame({"invoice": ["1", "C2", "3"], "quantity": [2, -2, 0]})
    >>> rules = [DropRows(reason="returns", column="invoice", matches="^C"),
    ...          DropRows(reason="nothing sold", column="quantity", below=1)]
    >>> kept, dropped = drop_rows(lines, rules, "lines")
    >>> kept["invoice"].to_list(), dropped
    (['1'], {'returns': 1, 'nothing sold': 1})
    """
    dropped: dict[str, int] = {}
    for rule in rules:
        matched = _matched(table[rule.column], rule, origin)
        dropped[rule.reason] = dropped.get(rule.reason, 0) + int(matched.sum())
        table = table.filter(~matched)
    return table, dropped


def _matched(values: pl.Series, rule: DropRows, origin: str) -> pl.Series:
    """Return which values match the rule."""
    if rule.missing:
        values = without_missing_words(values)
        empty = values.is_nan() if values.dtype.is_float() else values.is_null()
        return values.is_null() | empty.fill_null(value=False)
    if rule.matches is not None:
        if values.dtype == pl.Binary:
            raise InputError(f"{origin}: column {rule.column!r}: has bytes that are no text")
        if not has_text(values.dtype):
            raise InputError(
                f"{origin}: column {rule.column!r}: must be text or numbers, not {values.dtype}"
            )
        try:
            text = pl.lit(values.cast(pl.String))
            if values.dtype.is_numeric():  # text is read as it is
                text = plain_text(pl.lit(values), values.dtype)
            matched = text.str.contains(rule.matches).fill_null(value=False)
            return pl.select(matched).to_series()
        except pl.exceptions.ComputeError as error:
            raise InputError(
                f"data.drop: {rule.matches!r} of {rule.reason!r} is not a regular expression"
            ) from error
    if not values.dtype.is_numeric() and values.dtype != pl.String:
        raise InputError(f"{origin}: column {rule.column!r}: must be numbers, not {values.dtype}")
    numbers = values.cast(pl.Float64, strict=False)
    if (wrong := values.filter(numbers.is_null() & values.is_not_null())).len():
        raise InputError(f"{origin}: column {rule.column!r}: {wrong[0]!r} is not a number")
    return (numbers < rule.below).fill_null(value=False)
