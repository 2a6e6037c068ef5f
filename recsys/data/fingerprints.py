"""The SHA-256 of the values of a table, whole or in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import polars as pl


def fingerprint(table: pl.DataFrame) -> str:
    """Return the SHA-256 of a table of integers, floats, text and lists of text.

    It covers the names, types and values of the columns.
    """
    return fingerprint_of_parts(
        {column.name: column.dtype for column in table}, len(table), lambda name: [table[name]]
    )


def fingerprint_of_parts(
    schema: Mapping[str, pl.DataType], rows: int, parts: Callable[[str], Iterable[pl.Series]]
) -> str:
    """Return the `fingerprint` of a table whose columns come in parts.

    Args:
        schema: the types of the columns.
        rows: the number of rows.
        parts: gives the parts of the named column, in order; it is called up to three times.
    """
    digest = hashlib.sha256()
    for name, dtype in schema.items():
        digest.update(f"{name} {dtype} {rows}\n".encode())
        is_text = dtype == pl.String or isinstance(dtype, pl.List)
        nulls = not dtype.is_float() and any(part.null_count() for part in parts(name))
        for part in parts(name):
            numbers = _joined(part).str.len_bytes() if is_text else part
            # With nulls, integers are floats in numpy: in all parts, if they are in one.
            numbers = numbers.cast(pl.Float64) if nulls else numbers
            digest.update(numbers.to_numpy().tobytes())
        for part in parts(name) if is_text else ():
            digest.update(_joined(part).str.join("").item().encode())
    return digest.hexdigest()


def _joined(part: pl.Series) -> pl.Series:
    return part.list.join("\x1f", ignore_nulls=True) if part.dtype == pl.List else part
