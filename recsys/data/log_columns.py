"""The columns of a log: the rule that each must follow, and the type that it is read as."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from recsys.config import Columns
from recsys.data.bytes_columns import how_to_write, no_text
from recsys.data.missing import without_missing_words
from recsys.data.rounded_ids import refuse_rounded_ids
from recsys.data.text_values import TextFacts, dates_in, numbers_in, text_facts
from recsys.data.time_format import form_hint
from recsys.errors import InputError

_WHOLE_FLOAT = r"-?[0-9]{1,15}\.0"
"""An integer as pandas writes it if some are missing in the column."""
_WHOLE = rf"^(?:{_WHOLE_FLOAT}|0|-?[1-9][0-9]{{0,17}})$"
EXACT_BITS = {"Float16": (16, 11), "Float32": (32, 24), "Float64": (64, 53)}
"""The bits of each type, and those of the integers that it tells apart."""
_NEVER_KEPT = (pl.Binary, pl.Duration, pl.Object, pl.Struct)


@dataclass(frozen=True, slots=True)
class LogColumn:
    """A column to check, with the facts that messages name."""

    values: pl.Series
    rows: pl.Series
    """The number of each data row, from 1; null in a frame of Spark, whose rows have none."""
    origin: str
    column: str

    @property
    def name(self) -> str:
        """The origin and the column's name."""
        return f"{self.origin}: column {self.column!r}"

    def how_to_drop(self, kept: str = "is not null", more: str = "") -> str:
        """Return how bad rows can be dropped, for a message.

        Args:
            kept: what holds for the column in the other rows, in SQL.
            more: what else may help.
        """
        quoted = self.column.replace('"', '""')
        condition = shlex.quote(f'"{quoted}" {kept}')
        return f" (drop such rows with --where {condition}, in Python where={more})"

    def refuse(self, bad: pl.Series, rule: str) -> None:
        """Raise an `InputError` that names the first bad value, if there is one."""
        if (first := bad.arg_max()) is not None and bad[first]:
            row, value = self.rows[first], self.values[first]
            place = self.name if row is None else f"{self.name}, data row {row}"
            raise InputError(f"{place}: {rule}: {value!r}")


def roles_of(columns: Columns, origin: str) -> dict[str, str]:
    """Return the column of each role that a log has.

    Raises:
        InputError: a column has two roles.
    """
    roles = columns.roles
    for name in roles.values():
        if len(same := [role for role in roles if roles[role] == name]) > 1:
            raise InputError(f"{origin}: column {name!r} cannot be both {' and '.join(same)}")
    return roles


def checked_ids(column: LogColumn) -> pl.Series:
    """Return the ids of a whole column: integers as int64, or text; see `whole_ids`."""
    return whole_ids(checked_ids_of_part(column), column.name)


def checked_ids_of_part(column: LogColumn) -> pl.Series:
    """Return ids of a part of a column: text remains text, since the other parts decide on it."""
    ids = _present_text(column)
    column.refuse(ids.is_null(), "an id is missing" + column.how_to_drop())
    if ids.dtype == pl.String:
        return ids
    if ids.dtype.is_float():
        column.refuse(ids.is_nan(), "an id is missing")
        column.refuse(*_inexact(ids, "ids integers or text"))
    if ids.dtype.is_float() or ids.dtype.is_decimal():
        ids = plain_ids(ids)
    if not ids.dtype.is_integer():
        raise InputError(f"{column.name}: ids must be integers or text, not {ids.dtype}")
    integers = ids.cast(pl.Int64, strict=False)
    column.refuse(integers.is_null(), "an id of more than 64 bits")
    return integers


def _inexact(numbers: pl.Series, remedy: str) -> tuple[pl.Series, str]:
    """Return which floats may have been rounded from another integer, and the rule they break."""
    size, bits = EXACT_BITS[str(numbers.dtype)]
    rule = f"a {size}-bit float of 2**{bits} or more is not exact: make {remedy} at their source"
    return (numbers.abs() >= 2.0**bits) & numbers.is_not_nan(), rule


def _present_text(column: LogColumn) -> pl.Series:
    """Return values without words for missing ones; bytes as text.

    Raises:
        InputError: bytes are no text.
    """
    values = column.values
    if values.dtype == pl.Binary:
        bad = no_text(values)
        if bad.any():
            how = how_to_write(values.filter(bad)[0])
            column.refuse(bad, f"bytes that are no text: {how}")
        values = values.cast(pl.String)
    return without_missing_words(values)


def whole_ids(ids: pl.Series, name: str) -> pl.Series:
    """Return the ids of a whole column that are text as integers if some are whole floats.

    Pandas writes the id 17850 as ``17850.0`` where others are missing, as in one month of several.
    The others must be integers or whole floats too; "007" is text.

    Args:
        ids: all values, or the distinct ones.
        name: the origin and the column's name in messages.

    Raises:
        InputError: ids remain text, and one is there with ``.0`` and without, or was rounded.

    >>> whole_ids(pl.Series(["7.0", "12"]), "log").to_list()
    [7, 12]
    >>> whole_ids(pl.Series(["7.0", "C"]), "log").to_list()
    ['7.0', 'C']
    """
    if ids.dtype != pl.String:
        return ids
    integers = plain_ids(ids)
    if integers.dtype == pl.String:
        refuse_rounded_ids(ids, name)
        floats = ids.filter(ids.str.contains(f"^{_WHOLE_FLOAT}$")).str.strip_suffix(".0").unique()
        twice = ids.filter(ids.is_in(floats.implode())).sort()
        if len(twice):
            raise InputError(
                f"{name}: has both {twice[0]!r} and {twice[0] + '.0'!r}, which may be one id: "
                "write it in one way"
            )
    return integers


def plain_ids(ids: pl.Series) -> pl.Series:
    """Return ids as integers if all are whole, and some are written as floats; others unchanged.

    Raises:
        InputError: a float is so large that it may have been rounded.

    >>> plain_ids(pl.Series(["7.0", "12"])).to_list(), plain_ids(pl.Series([7.5])).to_list()
    ([7, 12], [7.5])
    """
    if ids.dtype == pl.String:
        # Almost no column of text has such an ending, and it is found fast.
        whole = ids.str.ends_with(".0").any() and ids.str.contains(_WHOLE).all()
        return ids.str.strip_suffix(".0").cast(pl.Int64) if whole else ids
    if not (ids.dtype.is_float() or ids.dtype.is_decimal()):
        return ids
    if ids.dtype.is_float():
        rounded, rule = _inexact(ids, "ids integers or text")
        if rounded.any():
            raise InputError(f"{ids.name or 'ids'}: {rule}: {ids.filter(rounded)[0]!r}")
    integers = ids.cast(pl.Int64, strict=False)
    return integers if (integers == ids).fill_null(ids.is_null()).all() else ids


BOOLEANS = {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}
"""The spellings of booleans in text, which are numbers elsewhere."""
_SPELLED = (
    r"^(?:(-?(?:0|[1-9]\d*))\.0+|(-?(?:0|[1-9]\d*)\.\d*[1-9])0+"
    r"|(\d{4}-\d{2}-\d{2})[T ]00:00(?::00(?:\.0+)?)?)$"
)
"""A number with zeros behind the point, or a date at midnight."""


def plain_text(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Write values in one way, whatever type they come in, without blanks around them.

    17850.0, "17850.0" and 17850 are 17850, as ids are; True, "True" and 1 are 1; a date at
    midnight is the date.

    >>> text = pl.Series(["7.0", "2.50", "True", "007", "2024-05-01 00:00:00.000"])
    >>> pl.select(plain_text(pl.lit(text), text.dtype)).to_series().to_list()
    ['7', '2.5', '1', '007', '2024-05-01']
    """
    if dtype == pl.Boolean:
        values = values.cast(pl.Int8)
    text = values.cast(pl.String)
    if dtype.is_integer() or dtype == pl.Boolean:
        return text
    if dtype.is_float():  # large ones would be written as 1e16, those that are missing as NaN
        whole = values.cast(pl.Int64, strict=False)
        whole = pl.when(whole == values).then(whole).cast(pl.String)
        text = pl.coalesce(whole, values.fill_nan(None).cast(pl.String))
    return text.str.strip_chars().replace(BOOLEANS).str.replace(_SPELLED, "${1}${2}${3}")


def checked_times(column: LogColumn, facts: TextFacts | None = None) -> pl.Series:
    """Return times as int64, float64, date or date-time, in full precision for the order.

    Args:
        column: the column, or a part of it.
        facts: those of the whole column, if it is text and this is a part of it.
    """
    times = _present_text(column)
    column.refuse(times.is_null(), "a value is missing" + column.how_to_drop())
    if times.dtype == pl.String:
        facts = facts or text_facts(times)
        times = dates_in(times) if facts.as_dates else numbers_in(times, facts)
        bad = times.is_null()
        if bad.any():
            hint = form_hint(column.values.filter(bad))
            column.refuse(bad, f"neither a number nor an ISO 8601 date{hint}")
    if times.dtype in (pl.Date, pl.Datetime):
        return times
    return _numbers(replace(column, values=times))


def times_of_part(values: pl.Series) -> pl.Series:
    """Return times of a part of a column in a type that does not depend on the part.

    Decimals become integers where all of a column are whole, which one part cannot tell: those with
    digits after the point are floats.
    """
    dtype = values.dtype
    has_fractions = isinstance(dtype, pl.Decimal) and dtype.scale > 0
    return values.cast(pl.Float64) if has_fractions else values


def _numbers(column: LogColumn) -> pl.Series:
    """Return finite numbers as int64 or float64."""
    numbers = column.values
    if numbers.dtype == pl.String:
        numbers = numbers_in(numbers)
    elif not numbers.dtype.is_numeric():
        raise InputError(f"{column.name}: must be numbers, not {numbers.dtype}")
    if numbers.dtype.is_integer() or (numbers.dtype.is_decimal() and (numbers % 1 == 0).all()):
        numbers = numbers.cast(pl.Int64, strict=False)
        bad = numbers.is_null()
    else:
        if numbers.dtype.is_float() and numbers.dtype != pl.Float64:
            column.refuse(*_inexact(numbers, "times integers or 64-bit floats"))
        numbers = numbers.cast(pl.Float64, strict=False)
        bad = ~(numbers.abs() < 2.0**63).fill_null(False)  # NaN counts as the largest number
    column.refuse(bad, "not a finite number of at most 64 bits")
    return numbers


def has_text(dtype: pl.DataType) -> bool:
    """Return whether values of a type can be written as text: not lists, bytes or Python objects.

    >>> has_text(pl.Date()), has_text(pl.List(pl.Int64))
    (True, False)
    """
    return not (dtype.is_nested() or isinstance(dtype, _NEVER_KEPT))


def convert_kept(column: pl.Series, name: str) -> pl.Series:
    """Convert a kept column to int64, float64, text or lists of text.

    Args:
        column: numbers, text, dates, times, or lists of them.
        name: the origin and the column's name in messages.

    Raises:
        InputError: it holds something else, or an integer of more than 64 bits.
    """
    try:
        if column.dtype.is_integer():
            return column.cast(pl.Int64)
        if column.dtype.is_numeric():
            return column.cast(pl.Float64)
        if not isinstance(column.dtype, _NEVER_KEPT):
            return column.cast(pl.List(pl.String) if column.dtype.is_nested() else pl.String)
    except pl.exceptions.PolarsError as error:
        if column.dtype.is_integer():
            raise InputError(f"{name}: an integer of more than 64 bits") from error
    raise InputError(
        f"{name}: cannot be kept: numbers, text, dates and lists of them can, not {column.dtype}"
    )


def check_features(table: pl.DataFrame, origin: str) -> None:
    """Check that the features of a table can be written.

    Raises:
        InputError: a column holds bytes or Python objects.
    """
    for column in table:
        if any(word in str(column.dtype) for word in ("Binary", "Object")):  # also inside lists
            raise InputError(f"{origin}: column {column.name!r}: cannot be kept: {column.dtype}")


RULES: dict[str, Callable[[LogColumn], pl.Series]] = {
    "user_id": checked_ids,
    "item_id": checked_ids,
    "timestamp": checked_times,
    "position": checked_times,
}
"""How a whole column is checked, by its role."""
