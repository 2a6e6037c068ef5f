"""Tables of files and frames as DuckDB reads them: names of columns, types, and rows in order.

Text files and JSON lines are read as text, since DuckDB's own types of ids and times are silently
wrong: 10.12.24 becomes 2010-12-24, the ids t and f truth values, and 8.9E+12 a float.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import cast

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from narwhals.typing import IntoFrame

from recsys.data.database import (
    MISSING_WORDS,
    PLAIN_INTEGER,
    check_names,
    cursor,
    database,
    in_one_line,
    name,
    patterns,
    text,
)
from recsys.data.frames import open_frame
from recsys.data.sources import SourceFile, find_files
from recsys.errors import InputError, did_you_mean

TableSource = str | os.PathLike[str] | IntoFrame
"""A file (.csv .tsv .txt .dat .inter .jsonl .ndjson, also .gz and .zst, or .parquet), a folder of
parts, a pattern such as logs/*.parquet, or a frame (polars, pandas, Arrow, DuckDB)."""

_SAMPLE = 1 << 20
"""Bytes at the beginning of a text file that tell its form."""
_BLOCK = 1 << 24
"""Characters that are decoded at a time."""
_SMALL = 1 << 23
"""Bytes that one thread reads as fast as several."""
_NEEDED = 16
"""Tables of a log take less than so many times its size."""


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table whose columns are known, and whose rows are read when asked for."""

    connection: duckdb.DuckDBPyConnection
    query: str
    """Selects all rows in their order, with every column that can be read."""
    types: Mapping[str, str]
    """The type of each such column in DuckDB's words."""
    origin: str
    """The name of the table in messages."""
    kind: str = ""
    """The format of a file in messages; empty for a frame."""
    is_text: bool = False
    """Whether all columns are text because a text file does not tell types."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Why columns must not be needed, since files lack them or have them in other types."""
    is_ordered: bool = True
    """Whether its rows have an order, as those of a frame of Spark may not."""

    @property
    def names(self) -> list[str]:
        """The names of the columns, those that cannot be read included."""
        return list(dict.fromkeys([*self.types, *self.unreadable]))

    def present(self, columns: Sequence[str]) -> list[str]:
        """Return the given columns, each once, or all if none are given; refuse a missing one."""
        for column in columns:
            if column in self.unreadable:
                raise InputError(self.unreadable[column])
            if column not in self.types:
                known, hint = ", ".join(self.names), did_you_mean(column, self.names)
                raise InputError(f"{self.origin}: no column {column!r} among {known}{hint}")
            if column.lower() == "rowid":
                raise InputError(f"{self.origin}: rename {column!r}, as which DuckDB numbers rows")
        return list(dict.fromkeys(columns or self.types))

    def selected(self, columns: Sequence[str]) -> str:
        """Return a query of columns in the order of the rows; UUIDs and spans of time are text."""
        casts = dict.fromkeys(("UUID", "INTERVAL", "ENUM"), "::varchar")
        casts["TIMESTAMPTZ_NS"] = "::timestamptz"  # which DuckDB's functions of dates know
        chosen = (
            f"{name(column)}{casts.get(self.types[column].partition('(')[0], '')} as {name(column)}"
            for column in self.present(columns)
        )
        return f"select {', '.join(chosen)} from ({self.query})"

    def renamed(self, names: Mapping[str, str]) -> OpenTable:
        """Return the table with other names, given the present name by each."""
        left = {column: column for column in self.types if column not in {*names.values()}}
        columns = left | {new: old for new, old in names.items() if old in self.types}
        chosen = ", ".join(f"{name(old)} as {name(new)}" for new, old in columns.items())
        types = {new: self.types[old] for new, old in columns.items()}
        return replace(self, query=f"select {chosen} from ({self.query})", types=types)

    def read(self, columns: Sequence[str] = (), rows: int | None = None) -> pl.DataFrame:
        """Read columns, all if none are given, of the first rows, all if None.

        A column of a text file has integers if every value is a plain integer, else text: one "007"
        makes it text. Bytes become text if all of a column is UTF-8.
        """
        limit = "" if rows is None else f" limit {rows}"
        with self.errors():
            query = self.connection.sql(f"{self.selected(columns)}{limit}")
            table = as_polars(query.to_arrow_table())
        return _typed(table) if self.is_text else table

    def errors(self) -> AbstractContextManager[None]:
        """Make one line of what can go wrong when rows are read."""
        what = f"cannot be read{' as ' * bool(self.kind)}{self.kind}"
        return in_one_line(self.origin, what, pa.ArrowException, OSError, UnicodeDecodeError)


def read_table(
    source: TableSource, columns: Sequence[str] = (), origin: str = "", encoding: str | None = None
) -> pl.DataFrame:
    """Read the given columns of a table, or all of them: `open_table`, then `OpenTable.read`."""
    return open_table(source, origin, encoding=encoding).read(columns)


def open_table(
    source: TableSource,
    origin: str = "",
    *,
    header: bool = True,
    encoding: str | None = None,
    work: Path | None = None,
    memory: int | None = None,
) -> OpenTable:
    """Find the columns of a table.

    Args:
        source: a file, a folder, a pattern or a frame.
        origin: its name in messages; its path, or "the frame", if not given.
        header: whether the first line of a text file names the columns; if not, they are 1, 2, ….
        encoding: that of text files that are neither UTF-8 nor UTF-16.
        work: a folder for what does not fit in memory; none for small tables.
        memory: the bytes that tables made of it may take, with a folder.

    Raises:
        InputError: there is no such file, or its format is unknown or broken.
    """
    small = _SMALL if memory is None else min(_SMALL, memory // _NEEDED)
    if not isinstance(source, str | os.PathLike):
        origin = origin or "the frame"
        frame = open_frame(source, origin)
        if not frame.column_names:
            raise InputError(f"{origin}: has no columns")
        check_names(frame.column_names, origin)
        is_small = work is None or frame.nbytes < small
        table = OpenTable(cursor() if is_small else database((), work, memory), "", {}, origin)
        with table.errors():  # such as of a type that DuckDB does not have
            table.connection.register("frame of the caller", frame)
            return _described(table, 'select * from "frame of the caller"')
    files = find_files(source)
    decoded = Path(tempfile.mkdtemp(prefix="decoded-", dir=work))
    with in_one_line(origin or str(source), "cannot be read", OSError):
        is_small = sum(file.path.stat().st_size for file in files) < small
    paths = [*(file.path for file in files), decoded]
    connection = database(paths, work, memory, is_small=is_small)
    weakref.finalize(connection, shutil.rmtree, decoded, ignore_errors=True)
    table = OpenTable(connection, "", {}, origin or str(source), files[0].kind)
    with table.errors():
        if table.kind == "Parquet":
            return _open_parquet(table, files)
        if table.kind == "JSON lines":
            return _open_json(table, files)
        return _open_texts(table, files, header, encoding, decoded)


def _described(table: OpenTable, query: str) -> OpenTable:
    """Return the table that a query reads, whose columns have the types that DuckDB finds."""
    relation = table.connection.sql(query)
    types = dict(zip(relation.columns, map(str, relation.types), strict=True))
    check_names(dict.fromkeys([*types, *table.unreadable]), table.origin)
    return replace(table, query=query, types=types)


def as_polars(table: pa.Table) -> pl.DataFrame:
    """Return a table of DuckDB: times are in UTC, and bytes of UTF-8 are text."""
    frame = cast("pl.DataFrame", pl.from_arrow(table))
    columns = []
    for column in frame.select(pl.col(pl.Binary)):
        with suppress(pl.exceptions.PolarsError):
            columns.append(column.cast(pl.String))
    return frame.with_columns(columns)


def _typed(table: pl.DataFrame) -> pl.DataFrame:
    """Strip blanks around text, and make columns integers if every value is a plain integer.

    Words for missing values count as integers, unless a column has nothing else; "007" does not.
    """
    table = table.select(pl.all().str.strip_chars())
    plain = table.select(pl.all().str.contains(f"^(?:{PLAIN_INTEGER})$"))
    words = pl.Series(MISSING_WORDS).implode()
    whole = [c.name for c in plain if c.any() and (c | table[c.name].is_in(words)).all()]
    return table.with_columns(pl.col(whole).cast(pl.Int64, strict=False))


def _lacking(names: Sequence[tuple[str, Sequence[str]]], origin: str) -> dict[str, str]:
    """Return why columns must not be needed that some files lack, given the names of each file."""
    every = {column for _, own in names for column in own if column}
    return {
        column: f"{place}: no column {column!r}, which other files of {origin} have"
        for place, own in reversed(names)  # so that the first one is named
        for column in every - {*own}
    }


# --- Delimited text -------------------------------------------------------------------------------

_TYPE_OF_RECBOLE = re.compile(r":(?:token|float)(?:_seq)?$")
_DELIMITERS = (",", "\t", ";", "|")
_SAMPLED_LINES = 20


def _open_texts(
    table: OpenTable, files: Sequence[SourceFile], header: bool, encoding: str | None, decoded: Path
) -> OpenTable:
    """Open text files as one table, all columns of it text; files of one form are read at once."""
    forms: list[tuple[tuple[tuple[str, ...], str], Path, str]] = []
    for file in files:
        place = table.origin if len(files) == 1 else str(file.path)
        path, sample = _as_utf8(file, place, encoding, decoded / str(len(forms)))
        names, options = _form_of(sample, file.kind, header, place)
        check_names(filter(None, names), place)
        forms.append(((names, options), path, place))
    every = dict.fromkeys(column for (names, _), *_ in forms for column in names if column)
    queries = []
    for (names, options), alike in groupby(forms, key=lambda form: form[0]):
        unique = (column or f"\1 {place}" for place, column in enumerate(names))
        columns = ", ".join(f"{text(column)}: 'VARCHAR'" for column in unique)
        chosen = ", ".join(
            f"{name(column) if column in names else 'null::varchar'} as {name(column)}"
            for column in every
        )
        queries.append(
            f"select {chosen} from read_csv({patterns(path for _, path, _ in alike)}, {options}, "
            f"auto_detect = false, strict_mode = true, columns = {{{columns}}})"
        )
    lacking = _lacking([(place, names) for (names, _), _, place in forms], table.origin)
    table = replace(table, is_text=True, unreadable=lacking)
    return _described(table, " union all ".join(queries))


def _as_utf8(file: SourceFile, place: str, encoding: str | None, decoded: Path) -> tuple[Path, str]:
    """Return the path of a file as UTF-8, and the beginning of its text."""
    with pa.input_stream(str(file.path), compression=file.compression) as stream:
        start = stream.read(_SAMPLE)
    known = {start[:1]: "utf-16-be", start[1:2]: "utf-16-le"}.get(b"\x00")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        known = "utf-16"
    if known is None and encoding is None:
        sample = start.decode("utf-8", errors="replace").removeprefix("\ufeff")
        return file.path, sample.replace("\r\n", "\n").replace("\r", "\n")
    for tried in [known] if known else ["utf-8-sig", encoding]:
        sample, in_place = "", tried == "utf-8-sig"
        with (
            suppress(UnicodeDecodeError),
            pa.input_stream(str(file.path), compression=file.compression) as stream,
            io.TextIOWrapper(stream, tried) as lines,
            Path(os.devnull if in_place else decoded).open(
                "w", encoding="utf-8", newline="\n"
            ) as written,
        ):
            while block := lines.read(_BLOCK):
                sample = sample or block[:_SAMPLE]
                written.write(block)
            return file.path if in_place else decoded, sample
    raise InputError(f"{place}: is neither UTF-8 nor {known or encoding} text")


def _form_of(sample: str, kind: str, header: bool, origin: str) -> tuple[tuple[str, ...], str]:
    """Return the names of a text file's columns, empty if it has none, and its form for DuckDB.

    The types in the names of RecBole's files are no part of them. In a file with tabs a quote is a
    character like any other, unless its first line has quoted fields.
    """
    if not sample.strip():
        raise InputError(f"{origin}: the file is empty")
    first, newline, _ = sample.partition("\n")
    if not newline and len(first) >= _SAMPLE // 4:
        raise InputError(f"{origin}: its first line is too long for a header")
    delimiter = _delimiter_of(sample, "\t" if kind == "TSV" else ",")
    quote = text("" if delimiter == "::" or not _has_quotes(first, delimiter) else '"')
    fields = first.split("::") if delimiter == "::" else _rows([first], delimiter)[0]
    names = [_TYPE_OF_RECBOLE.sub("", column.strip()) for column in fields]
    if not header:
        names = [str(number) for number in range(1, len(names) + 1)]
    if not any(names):
        raise InputError(f"{origin}: its first line names no column: give --no-header if none does")
    return tuple(names), (
        f"header = {header}, delim = {text(delimiter)}, quote = {quote}, escape = {quote}"
    )


def _delimiter_of(sample: str, default: str) -> str:
    """Return the delimiter that gives the first lines equally many fields, at least two."""
    lines = [line for line in sample.splitlines() if line.strip()][: _SAMPLED_LINES + 1]
    lines = lines[:-1] or lines  # the last one may be cut
    fields = {delimiter: [*map(len, _rows(lines, delimiter))] for delimiter in _DELIMITERS}
    even = [d for d in _DELIMITERS if min(fields[d]) == max(fields[d]) > 1]
    if not even and all("::" in line for line in lines):
        return "::"
    several = even or [d for d in _DELIMITERS if fields[d][0] > 1]
    return max(several, key=lambda d: (fields[d][0], d == default), default=default)


def _rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    quotes = '"' if _has_quotes(lines[0], delimiter) else None
    try:
        return list(csv.reader(lines, delimiter=delimiter, quotechar=quotes))
    except csv.Error:  # a field of more than 128 KiB
        return [[""]]


def _has_quotes(first: str, delimiter: str) -> bool:
    """Return whether quotes around fields belong to the form of a file, by its first line."""
    quoted = (re.fullmatch('".*"', field.strip()) for field in first.split(delimiter))
    return delimiter != "\t" or any(quoted)


# --- Parquet and JSON lines -----------------------------------------------------------------------


def _open_parquet(table: OpenTable, files: Sequence[SourceFile]) -> OpenTable:
    """Open Parquet files as one table; columns with types of several kinds cannot be read."""
    kinds: dict[str, dict[str, str]] = {}
    names: list[tuple[str, Sequence[str]]] = []
    for file in files:
        place = table.origin if len(files) == 1 else str(file.path)
        with replace(table, origin=place).errors():
            schema = pq.read_schema(file.path)
        check_names(schema.names, place)
        names.append((place, schema.names))
        for column in schema:
            if column.type != pa.null():
                kinds.setdefault(column.name, {}).setdefault(_kind(column.type), place)
    keys = {part.partition("=")[0].lower() for part in files[0].path.parts[:-1] if "=" in part}
    own = {column.lower() for _, columns in names for column in columns}
    query = (
        f"select * from read_parquet({patterns(file.path for file in files)}, "
        f"hive_partitioning = {len(files) > 1 and bool(keys) and keys.isdisjoint(own)}, "
        "union_by_name = true)"
    )
    unreadable = _lacking(names, table.origin)
    several = {column: [*places.items()] for column, places in kinds.items() if len(places) > 1}
    for column, ((kind, place), (other, elsewhere), *_) in several.items():
        unreadable[column] = (
            f"{table.origin}: column {column!r}: is {kind} in {place} and {other} in {elsewhere}: "
            "give it the same type in all files"
        )
    table = _described(replace(table, unreadable=unreadable), query)
    readable = {column: kind for column, kind in table.types.items() if column not in several}
    return replace(table, types=readable)


def _kind(kind: pa.DataType) -> str:
    """Return in a word what types DuckDB brings together without a loss."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"lists of {_kind(kind.value_type)}"
    # Every size of integers and text, and times of every unit and zone.
    return re.sub(r"^u?int\d+$", "integers", str(kind).removeprefix("large_").partition("[")[0])


def _open_json(table: OpenTable, files: Sequence[SourceFile]) -> OpenTable:
    """Open JSON lines as one table: numbers and lists as they are written, all else as text."""
    every = (
        f"read_json({patterns(file.path for file in files)}, format = 'newline_delimited', "
        "maximum_depth = 1, sample_size = -1, union_by_name = true)"
    )
    columns = table.connection.sql(f"select * from {every}").columns
    kinds = ", ".join(f"list(distinct json_type({name(column)}))" for column in columns)
    found = table.connection.execute(f"select {kinds} from {every}").fetchall()[0]
    chosen = []
    for column, several in zip(columns, found, strict=True):
        kind = _json_type({*(several or ())} - {"NULL", None})
        how = "json_extract" if kind.endswith("[]") else "json_extract_string"
        chosen.append(f"{how}({name(column)}, '$')::{kind} as {name(column)}")
    return _described(table, f"select {', '.join(chosen)} from {every}")


def _json_type(kinds: set[str]) -> str:
    if kinds and kinds <= {"BIGINT", "UBIGINT"}:
        return "BIGINT"
    if kinds and kinds <= {"BIGINT", "UBIGINT", "DOUBLE"}:
        return "DOUBLE"
    return {"BOOLEAN": "BOOLEAN", "ARRAY": "VARCHAR[]"}.get("".join(kinds), "VARCHAR")
