"""Rows of a source that are no interactions: left out by declared rules, and counted."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from recsys.config import DropRows
from recsys.errors import InputError


def drop_rows(
    table: pl.DataFrame, rules: Sequence[DropRows], origin: str
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Leave out the rows that a rule names.

    Args:
        table: has the columns of the rules.
        rules: a row counts for the first one that names it.
        origin: of the table, as messages name it.

    Returns:
        The other rows, in their order, and how many went for each reason.

    Raises:
        InputError: a rule asks for numbers of a column that has none, or is no regular expression.

    >>> lines = pl.DataFrame({"invoice": ["1", "C2", "3"], "quantity": [2, -2, 0]})
    >>> rules = [DropRows(reason="returns", column="invoice", matches="^C"),
    ...          DropRows(reason="nothing sold", column="quantity", below=1)]
    >>> kept, dropped = drop_rows(lines, rules, "lines")
    >>> kept["invoice"].to_list(), dropped
    (['1'], {'returns': 1, 'nothing sold': 1})
    """
    dropped: dict[str, int] = {}
    for rule in rules:
        named = _named(table[rule.column], rule, origin)
        dropped[rule.reason] = dropped.get(rule.reason, 0) + int(named.sum())
        table = table.filter(~named)
    return table, dropped


def _named(values: pl.Series, rule: DropRows, origin: str) -> pl.Series:
    """Which values the rule names."""
    if rule.missing:
        empty = values.is_nan() if values.dtype.is_float() else values.cast(pl.String) == ""
        return values.is_null() | empty.fill_null(value=False)
    if rule.matches is not None:
        try:
            return values.cast(pl.String).str.contains(rule.matches).fill_null(value=False)
        except pl.exceptions.ComputeError as error:
            raise InputError(
                f"data.drop: {rule.matches!r} of {rule.reason!r} is no regular expression"
            ) from error
    if not values.dtype.is_numeric() and values.dtype != pl.String:
        raise InputError(f"{origin}: column {rule.column!r}: not numbers but {values.dtype}")
    numbers = values.cast(pl.Float64, strict=False)
    if (wrong := values.filter(numbers.is_null() & values.is_not_null())).len():
        raise InputError(f"{origin}: column {rule.column!r}: {wrong[0]!r} is no number")
    return (numbers < rule.below).fill_null(value=False)
