"""The condition that chooses the rows of a log, in SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

import polars as pl
import polars.selectors as cs

from recsys.data.log_columns import plain_text
from recsys.data.missing import without_missing_words
from recsys.data.text_values import TextFacts, dates_in, numbers_in, text_facts
from recsys.errors import InputError, did_you_mean, first_line

_BESIDE_NUMBERS = "a date is compared with numbers: write a number, in their unit"
_OTHER_TYPE = (
    pl.exceptions.ComputeError,
    pl.exceptions.InvalidOperationError,
    pl.exceptions.SchemaError,
)
_LOOKED_AT = 1_000
_LITERAL = re.compile(
    r"""'(?:[^']|'')*'|"(?P<quoted>[^"']*)"|(?<![\w.])(?P<decimal>\d+\.\d+)\b|(?P<mark>&+|\|+)""",
)
"""Text in single quotes, text or a name in double quotes, a decimal number, or & and |."""
_TEXT = r"'(?:[^']|'')*'"
_DATE = re.compile(
    rf"\b(?:date|datetime|timestamp)\s*(?P<plain>{_TEXT})"
    rf"|\b(?:date|datetime|timestamp)\s*\(\s*(?P<called>{_TEXT})\s*\)"
    rf"|\bcast\s*\(\s*(?P<cast>{_TEXT})\s+as\s+(?:date|datetime|timestamp)\s*\)"
    rf"|(?P<marked>{_TEXT})\s*::\s*(?:date|datetime|timestamp)\b",
    re.IGNORECASE,
)
"""A date in SQL."""


def where_columns(where: str, names: Sequence[str], origin: str) -> list[str]:
    """Return the columns that a condition needs.

    Args:
        where: the condition; see `keep_where`.
        names: the names of all columns of the table.
        origin: the name of the table in messages.

    Raises:
        InputError: the condition is no SQL, or names an unknown column.
    """
    expression = _parsed(where, names, origin)
    return list(dict.fromkeys(expression.meta.root_names()))


def keep_where(
    table: pl.DataFrame,
    where: str,
    origin: str,
    names: Sequence[str] = (),
    facts: Mapping[str, TextFacts] | None = None,
    later: bool = False,
) -> tuple[pl.DataFrame, int]:
    """Keep the rows for which a condition holds, and count the others.

    The condition is an expression of SQL as polars reads it, e.g. ``event_type = 'purchase' and
    price > 5``. ``==`` is taken for ``=``, and text may stand in double quotes too, as long as no
    column has its name. Dates are written as ``date '2024-01-31'``. Text that holds numbers or
    dates is compared as such if the condition compares it with numbers or dates. The condition does
    not hold where it is unknown because a value is missing.

    Args:
        table: a table with at least the columns of the condition.
        where: the condition.
        origin: the name of the table in messages.
        names: the names of all columns, in messages; those of the table if empty.
        facts: those of the text columns, if the table is a part of the log.
        later: whether the condition is that of an earlier log, where a column of numbers may have
            been text, such as 10, 20 and X3: it is compared as text if it cannot be as numbers.

    Raises:
        InputError: the condition is no SQL, names an unknown column, compares text with numbers, or
            is neither true nor false for each row.

    >>> log = pl.DataFrame({"event": ["view", "purchase", None], "price": ["9.5", "20", "1"]})
    >>> keep_where(log, "event == 'purchase' and price > 9.9", "log")[0].rows()
    [('purchase', '20')]
    """
    expression = _parsed(where, names or table.columns, origin)
    undated = _undated(where, names or table.columns)
    used = list(dict.fromkeys(expression.meta.root_names()))
    try:
        holds = _evaluated(table, expression, undated, used, facts or {}, later)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        hint = "; a date is written as date '2024-01-31'"
        dated = any(table[name].dtype.is_temporal() for name in used)
        reason = f"{first_line(error)} ({_kinds(table, used)}){hint if dated else ''}"
        raise InputError(f"{_named(where)}: {reason}") from error
    if holds.dtype != pl.Boolean or len(holds) != len(table):
        raise InputError(f"{_named(where)}: must be true or false for each row of {origin}")
    kept = table.filter(holds)
    return kept, len(table) - len(kept)


class NoRowsLeftError(InputError):
    """The rules of a dataset leave no row of a log."""


def holds_nowhere(
    table: pl.DataFrame, where: str, origin: str, rows: int | None = None
) -> NoRowsLeftError:
    """Return the error that a condition holds for no row of a table, with values of its columns.

    ``rows`` counts those of a log that has more than the table.
    """
    used = where_columns(where, table.columns, origin)
    return NoRowsLeftError(
        f"{_named(where)}: holds for none of the {rows or len(table):,} rows of {origin} "
        f"({_kinds(table, used)})"
    )


def _undated(where: str, names: Sequence[str]) -> pl.Expr | None:
    """Parse a condition with text in place of its dates; None if it has none, or needs them."""
    text = _rewritten(where, names)
    undated = _DATE.sub(lambda match: next(filter(None, match.groups())), text)
    if undated == text:
        return None
    try:
        return pl.sql_expr(undated)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):  # date '…' - interval '…'
        return None


def _rewritten(where: str, names: Sequence[str]) -> str:
    """Return a condition as polars reads it.

    Raises:
        InputError: it has marks of Python.
    """

    def rewrite(match: re.Match[str]) -> str:
        quoted, decimal = match["quoted"], match["decimal"]
        if match["mark"] is not None:  # bits of numbers in SQL
            raise InputError(f"{_named(where)}: write and, or and not in place of {match['mark']}")
        if decimal is not None:  # polars would compare a decimal with text, as text
            return f"cast({decimal} as double)"
        return match[0] if quoted is None or quoted in names else f"'{quoted}'"

    return _LITERAL.sub(rewrite, where)


def _parsed(where: str, names: Sequence[str], origin: str) -> pl.Expr:
    """Parse a condition, and check the names of its columns."""
    text = _rewritten(where, names)
    known = f"the columns of {origin} are {', '.join(names)}"
    try:
        expression = pl.sql_expr(text)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(
            f"{_named(where)}: cannot be read as SQL, such as event = 'purchase' and price > 5: "
            f"{first_line(error)}; {known}"
        ) from error
    for name in expression.meta.root_names():
        if name not in names:
            hint = did_you_mean(name, names) or f"; text stands in quotes: '{name}'"
            raise InputError(f"{_named(where)}: no column {name!r}{hint}; {known}")
    return expression


def _evaluated(
    table: pl.DataFrame,
    expression: pl.Expr,
    undated: pl.Expr | None,
    used: Sequence[str],
    facts: Mapping[str, TextFacts],
    later: bool,
) -> pl.Series:
    """Evaluate a condition; columns of text that holds numbers are numbers if that is possible.

    Columns of text that holds dates are dates if they are compared with dates.

    Args:
        table: the rows.
        expression: the condition.
        undated: the condition with text in place of dates; None if it has none.
        used: the columns that it reads.
        facts: see `keep_where`.
        later: see `keep_where`.

    Raises:
        PolarsError: it compares text or dates with numbers in any case.
    """
    choices = [_as_numbers_or_text(table[name], facts.get(name), later) for name in used]
    refused: pl.exceptions.PolarsError | None = None
    for columns in product(*choices):
        try:
            chosen = table.with_columns(columns)
            found = chosen.select(expression).to_series()
            if undated is not None:
                _refuse_dates_beside_numbers(chosen, undated)
            return found
        except _OTHER_TYPE as error:
            refused = refused if _BESIDE_NUMBERS in str(refused) else error
    assert refused is not None  # noqa: S101 - there is a choice
    raise refused


def _refuse_dates_beside_numbers(table: pl.DataFrame, undated: pl.Expr) -> None:
    """Raise an error if a condition compares dates with numbers, which polars takes for days.

    Raises:
        ComputeError: it does.
    """
    empty = table.head(0).with_columns((cs.date() | cs.datetime()).cast(pl.String))
    try:
        empty.select(undated)
    except pl.exceptions.PolarsError as error:  # others need the dates, such as the year of one
        if "string with numeric" in str(error):
            raise pl.exceptions.ComputeError(_BESIDE_NUMBERS) from error


def _as_numbers_or_text(values: pl.Series, facts: TextFacts | None, later: bool) -> list[pl.Series]:
    """Return a column as it is, as numbers before that and as dates after it, if it holds them.

    With ``later``, numbers are text after that: see `keep_where`.
    """
    if values.dtype != pl.String:
        if not later or not values.dtype.is_numeric():
            return [values]
        spelled = plain_text(pl.lit(values), values.dtype).alias(values.name)
        return [values, pl.select(spelled).to_series()]
    text = without_missing_words(values)
    facts = facts or text_facts(text)
    if facts.unread_numbers == facts.missing:
        return [numbers_in(text, facts), values]
    return [values, dates_in(text)] if facts.not_dates == facts.missing else [values]


def reads_rows_alone(where: str, names: Sequence[str], origin: str) -> bool:
    """Return whether a condition reads each row alone: it has no sum, average or window."""
    tree = _parsed(where, names, origin).meta.serialize(format="json")
    return not re.search(r'"(?:Agg|Over|Window|Rolling|Len|Slice|SortBy)"', tree)


def _kinds(table: pl.DataFrame, used: Sequence[str]) -> str:
    """Return the type of each used column, and some of its values."""
    parts = []
    for name in used:
        show = str if table[name].dtype.is_temporal() else repr
        values = table[name].drop_nulls().head(_LOOKED_AT).to_list()
        shown = list(dict.fromkeys(map(show, values)))[:5]
        parts.append(f"column {name!r} of {table[name].dtype} has {', '.join(shown)}")
    return "; ".join(parts)


def _named(where: str) -> str:
    return f"data.where {where!r}"
