"""Parquet files that hold a table and its protocol."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from recsys.data.files import new_file
from recsys.data.seal import BLANK, DamagedError, check_seal, seal
from recsys.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger(__name__)

_SEAL = "recsys.seal"
_READ_ERRORS = (OSError, pl.exceptions.PolarsError, json.JSONDecodeError, UnicodeDecodeError)

P = TypeVar("P", bound="DataclassInstance")


def save_table(
    path: str | os.PathLike[str], noun: str, frame: pl.DataFrame, protocol: DataclassInstance
) -> None:
    """Write one Parquet file atomically, with the protocol and its SHA-256 in its metadata.

    Args:
        path: the file.
        noun: the kind of table, e.g. ``rank table``; it names the metadata.
        frame: the table.
        protocol: a dataclass whose values JSON can represent.

    Raises:
        InputError: the file cannot be written.
    """
    metadata = {_key(noun): json.dumps(asdict(protocol)), _SEAL: BLANK}
    with new_file(Path(path)) as file:
        frame.write_parquet(file, metadata=metadata)
        seal(file)


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
        InputError: the file cannot be read, is damaged, or is not such a table.
    """
    try:
        sealed = check_seal(Path(path))
        metadata = pl.read_parquet_metadata(Path(path))
        if not sealed:
            if _SEAL in metadata:  # the text that the checksum is found by was changed
                raise DamagedError(f"{path}: damaged: its SHA-256 cannot be found")
            logger.warning("%s: written before tables had checksums, and not checked", path)
        frame = pl.read_parquet(Path(path))
        tree = json.loads(metadata.get(_key(noun), "{}"))
    # A damaged Parquet page can make polars panic instead of raising.
    except (*_READ_ERRORS, pl.exceptions.PanicException) as error:
        found = " ".join(str(error).split())
        raise InputError(f"{path}: cannot read the {noun}: {found}") from error
    names = {field.name for field in fields(protocol)}
    missing = (names - set(tree)) | (set(columns) - set(frame.columns))
    if missing:
        raise InputError(f"{path}: not a {noun}: {', '.join(sorted(missing))} missing")
    return frame, protocol(**{name: tree[name] for name in names})


def _key(noun: str) -> str:
    return f"recsys.{noun.replace(' ', '_')}"
