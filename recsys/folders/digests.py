"""SHA-256 of files, of folders, of trees of plain values, and of the values of a table."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from recsys.errors import InputError


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


def table_sha256_of_parts(
    schema: Mapping[str, pl.DataType], rows: int, parts: Callable[[str], Iterable[pl.Series]]
) -> str:
    """Return the SHA-256 of the names, types and values of a table, given part by part.

    Columns are integers, floats, text or lists of text; ``parts`` is called up to three times.
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


# --- Files that hold the SHA-256 of their other bytes ---------------------------------------------

_MARK = b"recsys.sha256:"
_DIGITS = hashlib.sha256().digest_size * 2
BLANK = _MARK.decode() + "0" * _DIGITS
"""The text that a file must contain once before it is sealed: free text of its metadata, as
safetensors and Parquet have. So no copy separates a file from its checksum."""


class DamagedError(InputError):
    """The file is not as it was sealed."""


def seal(path: Path) -> None:
    """Replace `BLANK`, which a file must contain once, by the SHA-256 of the file with it."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        place = _place_of_digest(content)
        if place is None:
            raise ValueError(f"{path}: {_MARK.decode()} does not occur once")
        content[place] = hashlib.sha256(content).hexdigest().encode()


def check_seal(path: Path) -> bool:
    """Return whether a file was sealed; one that was changed since is a `DamagedError`."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        place = _place_of_digest(content)
        if place is None:
            return False
        digest, content[place] = content[place], b"0" * _DIGITS
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise DamagedError(f"{path}: damaged: its SHA-256 is not the one that it holds")
    return True


def _place_of_digest(content: mmap.mmap) -> slice | None:
    """Return where the digest is; None unless the mark occurs once."""
    start = content.find(_MARK) + len(_MARK)
    once = start >= len(_MARK) and content.find(_MARK, start) < 0
    return slice(start, start + _DIGITS) if once and start + _DIGITS <= len(content) else None
