"""SHA-256 of files, of folders, of trees of plain values, and of the values of a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_sha256(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder, by name."""
    return {file.name: file_sha256(file) for file in sorted(folder.iterdir())}


def tree_sha256(tree: Mapping[str, Any]) -> str:
    """Return the SHA-256 of values that JSON can represent, without the key ``digest``."""
    content = {key: value for key, value in tree.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def table_sha256(table: pl.DataFrame) -> str:
    """Return the SHA-256 of a table of integers, floats, text and lists of text.

    It covers the names, types and values of the columns.
    """
    schema = {column.name: column.dtype for column in table}
    return table_sha256_of_parts(schema, len(table), lambda name: [table[name]])


def table_sha256_of_parts(
    schema: Mapping[str, pl.DataType], rows: int, parts: Callable[[str], Iterable[pl.Series]]
) -> str:
    """Return the `table_sha256` of a table whose columns come in parts.

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
