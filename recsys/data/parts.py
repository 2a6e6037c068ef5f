"""Parquet and JSON files that are one table, though their columns may differ."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import BytesIO
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import polars as pl

from recsys.data.bytes_columns import uuid_text, uuids_in
from recsys.data.log_columns import EXACT_BITS
from recsys.data.part_types import are_whole, common_type, converted
from recsys.data.source_files import SourceFile
from recsys.errors import InputError, first_line

# A damaged Parquet page can make polars panic instead of raising.
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What polars raises if a file cannot be read."""

_SHORT_FLOATS = {"Float16", "Float32"}
_SAME_NAMES = re.compile(r"column with name ('.*') has more than one occurrence")

Schema = Mapping[str, pl.DataType]


@dataclass(frozen=True, slots=True)
class Part:
    """A file, and what is known of it before its rows are read."""

    source: Path | bytes
    """Its path, or its content if it is compressed."""
    name: str
    """The path that messages name."""
    schema: dict[str, pl.DataType]
    uuids: frozenset[str] = frozenset()
    """The columns of UUIDs, which are read as text."""


@dataclass(frozen=True, slots=True)
class SchemaGroup:
    """Neighbouring parts with one schema: the same columns of the same types."""

    parts: tuple[Part, ...]
    schema: Schema
    """The type of each column, those of folders such as day=2024-01-05 included."""
    kind: str
    folders: Schema | None
    """The columns of folders; None if folders are none."""
    whole: frozenset[str] = frozenset()
    """The columns whose numbers become integers, since all of them are whole."""

    def scan(self) -> pl.LazyFrame:
        """Return the rows, as the files have them; UUIDs are text."""
        sources = [_readable(part.source) for part in self.parts]
        if self.kind == "JSON lines":
            return pl.scan_ndjson(_escaped(sources), schema=dict(self.schema))
        hive = None if self.folders is None else dict(self.folders)
        rows = pl.scan_parquet(
            sources,  # type: ignore[arg-type]
            glob=False,
            hive_partitioning=hive is not None,
            hive_schema=hive or None,
        )
        uuids = self.parts[0].uuids
        return rows.with_columns(map(uuid_text, uuids)) if uuids else rows

    def has_whole(self, name: str) -> bool:
        """Return whether all numbers of a column that are not missing are integers of 64 bits."""
        return bool(self.scan().select(are_whole(name)).collect().item())

    def has_rounded(self, name: str) -> bool:
        """Return whether whole numbers of a column are too large for its 16 or 32 bits."""
        if (kind := str(self.schema.get(name))) not in _SHORT_FLOATS or not self.has_whole(name):
            return False
        large = pl.col(name).abs() >= 2.0 ** EXACT_BITS[kind][1]
        return bool(self.scan().select(large.any()).collect().item())

    def columns(self, target: Schema) -> Iterator[pl.Expr]:
        """Yield the columns of a table in their types there; one that is missing here is null."""
        for name, kind in target.items():
            if name in self.schema:
                whole = name in self.whole
                yield converted(name, self.schema[name], kind, whole=whole).alias(name)
            else:
                yield pl.lit(None, kind).alias(name)


@dataclass(frozen=True, slots=True)
class Parts:
    """The files of a table, and the columns of all of them."""

    groups: tuple[SchemaGroup, ...]
    schema: Schema
    """The columns that can be read, with the types that all parts are read in."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """The columns that some part does not have, with the first such part."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The columns whose types have nothing in common, with words that say so."""

    def scan(self) -> pl.LazyFrame:
        """Return all rows, in the order of the files; only the columns that are asked for are read.

        A column that a part lacks is null there.
        """
        if len(self.groups) == 1:
            return self.groups[0].scan()
        return pl.concat([group.scan().select(group.columns(self.schema)) for group in self.groups])


def open_parts(files: Sequence[SourceFile], names: Sequence[str], hive: bool) -> Parts:
    """Find the columns of Parquet or JSON files.

    Integers and floats become integers if all of them are whole, else floats; numbers and text
    become text, as in a text file.

    Args:
        files: the files, all of one kind.
        names: what each file is called in messages.
        hive: whether folders such as day=2024-01-05 hold a column.

    Raises:
        InputError: a file cannot be read.
    """
    kind = files[0].kind
    parts = [_open(file, name) for file, name in zip(files, names, strict=True)]
    if kind == "JSON lines":  # an empty part has no columns, which differs from lacking one
        parts = [part for part in parts if part.schema] or parts
    folders = _folders(parts) if hive and kind == "Parquet" else None
    groups = tuple(
        SchemaGroup(tuple(files), {**schema, **(folders or {})}, kind, folders)
        for (schema, _), files in groupby(parts, key=lambda part: (part.schema, part.uuids))
    )
    return _joined(groups) if len(groups) > 1 else Parts(groups, groups[0].schema)


def _joined(groups: tuple[SchemaGroup, ...]) -> Parts:
    """Return the parts of a table whose columns differ."""
    schema: dict[str, pl.DataType] = {}
    lacking: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    whole: list[set[str]] = [set() for _ in groups]
    for name in dict.fromkeys(name for group in groups for name in group.schema):
        without = [group for group in groups if name not in group.schema]
        if without:
            lacking[name] = without[0].parts[0].name
        kind, groups_with_integers = _agreed(groups, name)
        if kind is None:
            unreadable[name] = _difference(groups, name)
            continue
        schema[name] = kind
        for number in groups_with_integers:
            whole[number].add(name)
    known = zip(groups, whole, strict=True)
    typed = tuple(replace(group, whole=frozenset(names)) for group, names in known)
    return Parts(typed, schema, lacking, unreadable)


def _agreed(groups: Sequence[SchemaGroup], name: str) -> tuple[pl.DataType | None, list[int]]:
    """Return the type of a column for all groups, and the groups whose floats become integers.

    Floats cannot tell apart all integers of 64 bits, and as text they are ``12.0``: whole ones, as
    pandas writes a column of integers some of which are missing, become integers first.
    """
    kinds = [group.schema.get(name, pl.Null()) for group in groups]
    kind = common_type(kinds)
    if kind not in (pl.String, pl.Float64) or {*kinds} <= {kind, pl.Null()}:
        return kind, []
    if any(group.has_rounded(name) for group in groups):
        return None, []
    floats = [number for number, kind in enumerate(kinds) if kind.is_float() or kind.is_decimal()]
    whole = [number for number in floats if groups[number].has_whole(name)]
    if kind == pl.Float64 and whole == floats:
        return common_type([pl.Int64(), *(kind for kind in kinds if kind.is_integer())]), whole
    return kind, whole if kind == pl.String else []


def _difference(groups: Sequence[SchemaGroup], name: str) -> str:
    """Return words on two types of a column that have nothing in common, and files with them."""
    holders = {
        group.schema[name]: group.parts[0].name
        for group in reversed(groups)
        if name in group.schema
    }
    differing = (
        pair
        for pair in combinations(reversed(holders), 2)
        if common_type(pair) is None or _SHORT_FLOATS & {*map(str, pair)}
    )
    found = " and ".join(f"is {kind} in {holders[kind]}" for kind in next(differing))
    return f"{found}: give it the same type in all files"


def _open(file: SourceFile, name: str) -> Part:
    """Find the columns of a file; an empty JSON file has none.

    Raises:
        InputError: it cannot be read.
    """
    try:
        source = file.path if file.compression is None else file.content()
        if file.kind == "Parquet":
            schema, uuids = _parquet_columns(source)
            return Part(source, name, schema | dict.fromkeys(uuids, pl.String()), uuids)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if not size:
            return Part(source, name, {})
        lazy = pl.scan_ndjson(_escaped([_readable(source)]), infer_schema_length=None)
        return Part(source, name, dict(lazy.collect_schema()))
    except UNREADABLE as error:
        if twice := _SAME_NAMES.match(str(error)):
            raise InputError(f"{name}: two columns are named {twice[1]}") from error
        raise InputError(f"{name}: cannot be read as {file.kind}: {first_line(error)}") from error


ParquetColumns = tuple[dict[str, pl.DataType], frozenset[str]]
"""The type of each column of a file, and the columns of UUIDs."""


def _parquet_columns(source: Path | bytes) -> ParquetColumns:
    """Return the columns of a file; those of an unchanged one are read once per process.

    A folder of thousands of files is opened several times until it is prepared.
    """
    if isinstance(source, bytes):
        return _read_parquet_columns(source)
    facts = source.stat()
    return _known_parquet_columns(source, facts.st_ino, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=1 << 14)
def _known_parquet_columns(path: Path, *_: int) -> ParquetColumns:
    return _read_parquet_columns(path)


def _read_parquet_columns(source: Path | bytes) -> ParquetColumns:
    found = pl.scan_parquet(_readable(source), glob=False, hive_partitioning=False)
    schema = dict(found.collect_schema())
    has_bytes = pl.Binary in schema.values()
    return schema, uuids_in(_readable(source)) if has_bytes else frozenset()


def _folders(parts: Sequence[Part]) -> dict[str, pl.DataType]:
    """Return the columns that the names of folders hold, with types that fit all parts."""
    sources = [_readable(part.source) for part in parts]
    lazy = pl.scan_parquet(sources, glob=False, hive_partitioning=True)  # type: ignore[arg-type]
    own = parts[0].schema
    return {name: kind for name, kind in lazy.collect_schema().items() if name not in own}


def _readable(source: Path | bytes) -> Path | BytesIO:
    return BytesIO(source) if isinstance(source, bytes) else source


def _escaped(sources: Sequence[Path | BytesIO]) -> Any:
    """Return paths of JSON files so that polars takes no character of them for a pattern."""
    return [glob.escape(str(each)) if isinstance(each, Path) else each for each in sources]
