"""The type of a column whose type differs from one file of a log to another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import polars as pl

_OPAQUE = (pl.Binary, pl.Object)


def common_type(types: Iterable[pl.DataType]) -> pl.DataType | None:
    """Return the type that values of several types have in common; None if they have none.

    Numbers remain numbers, dates remain times, and a mixture of either with text is text.

    >>> common_type([pl.Int32(), pl.Null(), pl.UInt8()]), common_type([pl.Int64(), pl.String()])
    (Int64, String)
    >>> common_type([pl.Int64(), pl.List(pl.Int64)]) is None
    True
    """
    found = list(dict.fromkeys(kind for kind in types if kind != pl.Null))
    if len(found) <= 1:
        return found[0] if found else pl.Null()
    if all(isinstance(kind, pl.List) for kind in found):
        inner = common_type(cast("pl.DataType", cast("pl.List", kind).inner) for kind in found)
        return None if inner is None else pl.List(inner)
    if any(kind.is_nested() or isinstance(kind, _OPAQUE) for kind in found):
        return None
    if all(kind.is_numeric() for kind in found):
        return _common_number(found)
    times = all(isinstance(kind, pl.Date | pl.Datetime) for kind in found)
    return pl.Datetime("us") if times else pl.String()


def _common_number(types: Sequence[pl.DataType]) -> pl.DataType:
    if not all(kind.is_integer() for kind in types):
        return pl.Float64()
    large = any(isinstance(kind, pl.UInt64 | pl.Int128 | pl.UInt128) for kind in types)
    return pl.Int128() if large else pl.Int64()


def are_whole(name: str) -> pl.Expr:
    """Return whether all numbers of a column that are not missing are integers of 64 bits."""
    numbers = pl.col(name)
    whole = numbers.cast(pl.Int64, strict=False) == numbers
    return (whole | numbers.cast(pl.Float64).is_nan()).fill_null(numbers.is_null()).all()


def converted(name: str, kind: pl.DataType, target: pl.DataType, *, whole: bool) -> pl.Expr:
    """Return a column of one type as another, which is a `common_type`.

    Args:
        name: the name of the column.
        kind: its type.
        target: the type that it gets.
        whole: whether its numbers are whole; NaN counts as missing then.
    """
    values = pl.col(name)
    if kind == target:
        return values
    if isinstance(kind, pl.Datetime) and kind.time_zone is not None:
        values = values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if whole:
        values = (values.fill_nan(None) if kind.is_float() else values).cast(pl.Int64)
    return values.cast(target)
