"""Parquet files that hold a table and its protocol."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from recsys.data.files import new_file
from recsys.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P", bound="DataclassInstance")


def save_table(
    path: str | os.PathLike[str], noun: str, frame: pl.DataFrame, protocol: DataclassInstance
) -> None:
    """Write one Parquet file atomically, with the protocol in its key-value metadata.

    Args:
        path: the file.
        noun: the kind of table, e.g. ``rank table``; it names the metadata.
        frame: the table.
        protocol: a dataclass whose values JSON can represent.

    Raises:
        InputError: the file cannot be written.
    """
    with new_file(Path(path)) as file:
        frame.write_parquet(file, metadata={_key(noun): json.dumps(asdict(protocol))})


def load_table(
    path: str | os.PathLike[str], noun: str, columns: Collection[str], protocol: type[P]
) -> tuple[pl.DataFrame, P]:
    """Read what `save_table` wrote under the same noun.

    Args:
        path: the file.
        noun: the kind of table.
        columns: the columns that it must have.
        protocol: the dataclass of its protocol.

    Raises:
        InputError: the file cannot be read, or is not such a table.
    """
    try:
        metadata = pl.read_parquet_metadata(Path(path))
        frame = pl.read_parquet(Path(path))
    # A damaged Parquet page can make polars panic instead of raising.
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(f"{path}: cannot read the {noun}: {error}") from error
    tree = json.loads(metadata.get(_key(noun), "{}"))
    names = {field.name for field in fields(protocol)}
    missing = (names - set(tree)) | (set(columns) - set(frame.columns))
    if missing:
        raise InputError(f"{path}: not a {noun}: {', '.join(sorted(missing))} missing")
    return frame, protocol(**{name: tree[name] for name in names})


def _key(noun: str) -> str:
    return f"recsys.{noun.replace(' ', '_')}"
