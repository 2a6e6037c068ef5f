"""Tables of files and frames as DuckDB reads them: names of columns, types, and rows in order.

Text files and JSON lines are read as text, since DuckDB's own types of ids and times are silently
wrong: 10.12.24 becomes 2010-12-24, the ids t and f truth values, and 8.9E+12 a float.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from narwhals.typing import IntoFrame

from recsys.config import ROW_ORDER
from recsys.data.database import (
    MISSING_WORDS,
    PLAIN_INTEGER,
    WHOLE,
    cursor,
    database,
    exhausted,
    name,
    reason,
    same_names,
    small_files,
    text,
    texts,
)
from recsys.data.frames import open_frame
from recsys.data.sources import ATOMIC, SourceFile, find_files
from recsys.errors import InputError, did_you_mean

TableSource = str | os.PathLike[str] | IntoFrame
"""A file (.csv .tsv .txt .dat .inter .parquet .jsonl .ndjson, also .gz and .zst), a folder of
parts, a pattern such as logs/*.parquet, or a frame (polars, pandas, Arrow, DuckDB)."""

_UNREADABLE = (duckdb.Error, pa.ArrowException, OSError, UnicodeDecodeError)
"""What comes of a file that cannot be read; the last of names in a damaged one."""
_SAMPLE = 1 << 16
"""Bytes at the beginning of a text file that are looked at."""
_LONGEST_LINE = 2_000_000
"""Bytes of a line of text: longer ones are no rows."""
_COPY = "log"
"""The name of the copy of a small file."""
_BLOCK = 1 << 24
_SMALL = 1 << 23
"""Bytes that one thread reads as fast as several."""
_NEEDED = 16
"""Tables of a log take less than so many times its size."""


class _Folder:
    """A temporary folder that goes when nobody has it any more.

    Args:
        above: where it is made; among the temporary files if None.
    """

    def __init__(self, above: Path | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="decoded-", dir=above))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


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
    index: tuple[str, ...] = ()
    """The names of the index of a pandas frame, which are no columns."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """The columns that some file does not have, with the first such file."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The columns that cannot be read, which only matters if one is needed, with the reason."""
    hint: str = ""
    """What a message on a missing column adds: that the names may be elsewhere; else empty."""
    dropped: Mapping[str, int] | None = None
    """The rows that conditions have dropped already, by their reasons; None if none was asked."""
    is_ordered: bool = True
    """Whether its rows have an order, as those of a frame of Spark may not."""
    folder: _Folder | None = None
    """Holds decoded files as long as the table is there."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, those that cannot be read included."""
        return (*self.types, *self.unreadable)

    @property
    def sure_names(self) -> list[str]:
        """The names of the columns that every file has and that can be read."""
        return [column for column in self.types if column not in self.lacking]

    def present(self, columns: Sequence[str]) -> list[str]:
        """Return the given columns, each once, or all that can be read if none are given.

        Raises:
            InputError: there is no such column, or a file does not have it, or it cannot be read.
        """
        columns = [column for column in columns if column in self.names or column != ROW_ORDER]
        if self.kind != "JSON lines":  # there, a field may be left out where it is null
            self.refuse_lacking(columns)
        for column in columns:
            if column not in self.names:
                hint = self.hint or did_you_mean(column, self.names)
                known = ", ".join(self.names)
                raise InputError(f"{self.origin}: no column {column!r} among {known}{hint}")
            if column in self.unreadable:
                raise InputError(f"{self.origin}: column {column!r}: {self.unreadable[column]}")
        return list(dict.fromkeys(columns or self.types))

    def refuse_lacking(self, columns: Iterable[str]) -> None:
        """Refuse files that do not have a column which other files have.

        Raises:
            InputError: there is such a file.
        """
        for column in columns:
            if column in self.lacking:
                raise InputError(
                    f"{self.lacking[column]}: no column {column!r}, which other files of "
                    f"{self.origin} have: add it to the file, or leave the file out{self.hint}"
                )

    def selected(self, columns: Sequence[str]) -> str:
        """Return a query of columns in the order of the rows; bytes that are text are text.

        Raises:
            InputError: as `present`; or the table is broken.
        """
        chosen = self.present(columns)
        parts = {column: name(column) for column in chosen}
        if blobs := [column for column in chosen if self.types[column] == "BLOB"]:
            lost = (f"count({name(blob)}) - count({decoded(blob)})" for blob in blobs)
            counts = self.rows(f"select {', '.join(lost)} from ({self.query})")[0]
            texts_of = (blob for blob, count in zip(blobs, counts, strict=True) if not count)
            parts |= {blob: f"{decoded(blob)} as {name(blob)}" for blob in texts_of}
        return f"select {', '.join(parts.values())} from ({self.query})"

    def read(self, columns: Sequence[str] = (), rows: int | None = None) -> pl.DataFrame:
        """Read columns, all if none are given, of the first rows, all if None.

        A column of a text file has integers if every value is a plain integer, else text: one "007"
        makes it text. Typed sources keep their types, except that bytes become text if all of a
        column is UTF-8.

        Raises:
            InputError: a column is missing, or the table is broken.
        """
        limit = "" if rows is None else f" limit {rows}"
        with self.errors():
            query = self.connection.sql(f"{self.selected(columns)}{limit}")
            table = as_polars(query.to_arrow_table())
        return typed(table) if self.is_text else table

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the few rows of a query.

        Raises:
            InputError: the table is broken.
        """
        with self.errors():
            return self.connection.execute(query).fetchall()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Make one line of what can go wrong when rows are read."""
        try:
            yield
        except _UNREADABLE as error:
            raise refused(error, self.origin, self.kind) from error


def read_table(
    source: TableSource,
    columns: Sequence[str] = (),
    origin: str = "",
    encoding: str | None = None,
) -> pl.DataFrame:
    """Read the given columns of a table, or all of them if none are given; see `OpenTable.read`.

    Raises:
        InputError: no such file, an unknown extension, a broken file, a missing column, or a
            duplicate column name.
    """
    table = open_table(source, origin, encoding=encoding)
    if not columns and not table.kind:  # of a frame all columns are read, or one is refused
        table.present(list(table.unreadable))
    return table.read(columns)


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
    if not isinstance(source, str | os.PathLike):
        return _open_frame(source, origin or "the frame", work, memory)
    origin = origin or str(source)
    files = find_files(source)
    if len(files) == 1 and files[0].path.stat().st_size == 0:
        raise InputError(f"{origin}: the file is empty")
    is_small = sum(file.path.stat().st_size for file in files) < _small(memory)
    kind, is_file = files[0].kind, Path(source).is_file()
    is_copied = is_small and is_file and files[0].compression is None
    if is_copied and (folder := _copied(files[0].path)) is not None:
        files, connection = (replace(files[0], path=folder.path / _COPY),), cursor()
    else:
        folder = _Folder(work)
        paths = [*(file.path for file in files), folder.path]
        connection = database(paths, work, memory, is_small=is_small)
    try:
        if kind == "Parquet":
            found = _open_parquet(files, connection, origin, hive=not is_file)
        elif kind == "JSON lines":
            found = _open_json(files, connection, origin)
        else:
            found = _open_texts(files, connection, origin, header, encoding, folder.path)
    except _UNREADABLE as error:
        raise refused(error, origin, kind) from error
    twice = same_names([*found.types, *found.unreadable])
    if twice is not None:
        raise InputError(f"{origin}: two columns are named {twice}{found.hint}")
    return replace(found, folder=folder)


def _copied(path: Path) -> _Folder | None:
    """Return a folder with a copy of a small file; None if none can be made."""
    try:
        folder = _Folder(small_files())
        shutil.copyfile(path, folder.path / _COPY)
    except OSError:
        return None
    return folder


def _small(memory: int | None) -> int:
    """Return the size from which on a table has a database of its own."""
    return _SMALL if memory is None else min(_SMALL, memory // _NEEDED)


def _open_frame(frame: IntoFrame, origin: str, work: Path | None, memory: int | None) -> OpenTable:
    table, unreadable, index = open_frame(frame, origin)
    if (twice := same_names([*table.column_names, *unreadable])) is not None:
        raise InputError(f"{origin}: two columns are named {twice}")
    is_small = work is None or table.nbytes < _small(memory)
    connection = cursor() if is_small else database((), work, memory)
    try:
        connection.register("frame of the caller", table)
        query = 'select * from "frame of the caller"'
        types = _types(connection, query) if table.num_columns else {}
    except duckdb.Error as error:
        raise refused(error, origin, "") from error
    spans = [column for column, kind in types.items() if kind == "INTERVAL"]
    unreadable |= dict.fromkeys(spans, "has spans of time: make numbers of them")
    types = {column: kind for column, kind in types.items() if column not in spans}
    names = ", ".join(map(repr, index))
    hint = f"; {names} is the index: reset_index() makes it a column" if names else ""
    return OpenTable(
        connection, query, types, origin, index=index, unreadable=unreadable, hint=hint
    )


def _types(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, str]:
    found = connection.sql(query)
    return dict(zip(found.columns, map(str, found.types), strict=True))


def decoded(column: str) -> str:
    """Return bytes as text in SQL; null if they are none: not UTF-8, or a UUID with a zero."""
    quoted = name(column)
    uuid = rf"octet_length({quoted}) = 16 and contains({quoted}::varchar, '\x00')"
    return f"case when not ({uuid}) then try(decode({quoted})) end"


def as_polars(table: pa.Table) -> pl.DataFrame:
    """Return a table of DuckDB: times in UTC have no zone, UUIDs and enumerations are text."""
    frame = cast("pl.DataFrame", pl.from_arrow(table))
    zoned = [
        column
        for column, kind in frame.schema.items()
        if isinstance(kind, pl.Datetime) and kind.time_zone is not None
    ]
    named = [column for column, kind in frame.schema.items() if kind in (pl.Categorical, pl.Enum)]
    return frame.with_columns(
        pl.col(zoned).dt.convert_time_zone("UTC"), pl.col(named).cast(pl.String)
    )


def typed(table: pl.DataFrame) -> pl.DataFrame:
    """Strip blanks around text, and make columns integers if every value is a plain integer.

    Words for missing values count as integers, unless a column has nothing else; "007" does not.

    >>> typed(pl.DataFrame({"a": ["1", " 2 "], "b": ["007", "8"], "c": ["3", "NULL"]})).rows()
    [(1, '007', 3), (2, '8', None)]
    """
    table = table.select(pl.all().str.strip_chars())
    plain = table.select(pl.all().str.contains(f"^(?:{PLAIN_INTEGER})$"))
    words = pl.Series(MISSING_WORDS).implode()
    whole = [c.name for c in plain if c.any() and (c | table[c.name].is_in(words)).all()]
    return table.with_columns(pl.col(whole).cast(pl.Int64, strict=False))


def refused(error: Exception, origin: str, kind: str) -> InputError:
    """Return what went wrong in DuckDB as one line, with the file and the line if it names them."""
    if (full := exhausted(error, origin)) is not None:
        return full
    said = re.sub(rf"[^'\s]*/decoded-\w+/(?:0|{_COPY})\b", lambda _: origin, str(error))
    file = re.search(r"^  file = (.*)$", said, re.MULTILINE)
    line = re.search(r"CSV Error on Line: (\d+)", said)
    place = file[1] if file else origin
    if "Maximum line size" in said or "does not support a full read" in said:
        return InputError(_too_long(place))
    if "not utf-8" in said or "Invalid unicode" in said:
        number = f", in line {line[1]}" if line else ""
        return InputError(f"{place}: is neither UTF-8 nor UTF-16 text{number}: {_ENCODING_HINT}")
    if line:
        known = re.search(
            r"(Expected Number of Columns: \d+ Found: \d+|Value with unterminated quote)", said
        )
        why = known[1] if known else reason(said)
        if "quote" in why:
            why = "has a quote that is neither around a whole field nor doubled"
        return InputError(f"{place}: cannot be read as CSV: line {line[1]}: {why.lower()}")
    if "state machine" in said:
        return InputError(f"{place}: cannot be read as CSV: its lines end in several ways")
    words = f" as {kind}" if kind else ""
    return InputError(f"{place}: cannot be read{words}: {reason(said)}")


# --- Delimited text -------------------------------------------------------------------------------

_VALUE_NAME = re.compile(r"^\s*(?:-?\d+(?:[.,]\d+)?|\d{4}-\d\d-\d\d.*)\s*$")
_ATOMIC_TYPE = re.compile(r":(?:token|float)(?:_seq)?$")
_DELIMITERS = (",", "\t", ";", "|")
_EXCEL_LINE = re.compile(r'"?sep=([,;|\t])"?\r?\n')
_OTHER_KINDS = {
    "PAR1": "a Parquet file: name it .parquet",
    "PK\x03\x04": "a zip archive or Excel workbook: extract or export it",
    "\x1f\ufffd": "compressed: name it .csv.gz",
    "BZh": "compressed: extract it",
    "(\ufffd/\ufffd": "compressed: name it .csv.zst",
}
"""How files that are no text begin, where bytes that are not UTF-8 are the replacement mark."""
_SAMPLED_LINES = 20
_ENCODING_HINT = (
    "convert it to UTF-8; a log may be prepared, and appended, in another encoding with "
    "--encoding, such as cp1252 (in Python encoding=)"
)
_ONE_COLUMN_HINT = "; fields are divided by comma, tab, semicolon, bar or ::"
_NO_HEADER_HINT = "; the first line looks like data: if it is no header, give --no-header"


@dataclass(frozen=True, slots=True)
class _TextForm:
    """How a text file is written: files of one form are read by one call."""

    names: tuple[str, ...]
    """Empty for a column that the header does not name."""
    delimiter: str
    quoted: bool
    """Whether quotes around a field belong to the form."""
    has_header: bool
    skipped: int
    """Lines before the header or the first row."""
    compression: str | None

    @property
    def looks_like_data(self) -> bool:
        return self.has_header and any(map(_VALUE_NAME.match, self.names))

    def query(self, paths: Sequence[Path], every: Sequence[str]) -> str:
        """Return the rows of files with the columns of all files; null where these have none."""
        quote = text('"' if self.quoted else "")
        unique = [column or f"\1 {place}" for place, column in enumerate(self.names)]
        columns = ", ".join(f"{text(column)}: 'VARCHAR'" for column in unique)
        chosen = ", ".join(
            name(column) if column in self.names else f"null::varchar as {name(column)}"
            for column in every
        )
        return (
            f"select {chosen} from read_csv({texts(paths)}, auto_detect = false, "
            f"columns = {{{columns}}}, header = {self.has_header}, skip = {self.skipped}, "
            f"delim = {text(self.delimiter)}, quote = {quote}, escape = {quote}, "
            f"strict_mode = true, "
            f"compression = '{self.compression or 'none'}', max_line_size = {_LONGEST_LINE})"
        )


def _open_texts(
    files: Sequence[SourceFile],
    connection: duckdb.DuckDBPyConnection,
    origin: str,
    header: bool,
    encoding: str | None,
    folder: Path,
) -> OpenTable:
    """Open text files as one table, all columns of it text.

    Raises:
        InputError: a file is empty or no text, or its header has no name or one twice.
    """
    found: list[tuple[_TextForm, Path, str]] = []
    for file in files:
        place = origin if len(files) == 1 else str(file.path)
        _refuse_long_end(file, place)
        path, sample, compression = _as_utf8(file, place, encoding, folder / str(len(found)))
        form = _form_of(sample, file.kind, header, compression, place)
        if (twice := same_names(filter(None, form.names))) is not None:
            hint = _NO_HEADER_HINT if form.looks_like_data else ""
            raise InputError(f"{place}: two columns are named {twice}{hint}")
        found.append((form, path, place))
    every = tuple(dict.fromkeys(n for form, *_ in found for n in form.names if n))
    lacking = {
        column: place
        for form, _, place in reversed(found)  # so that the first one is named
        for column in {*every} - {*form.names}
    }
    queries = [
        form.query([path for _, path, _ in alike], every)
        for form, alike in groupby(found, key=lambda one: one[0])
    ]
    hint = _ONE_COLUMN_HINT if len(every) == 1 else ""
    if any(form.looks_like_data for form, *_ in found):
        hint = _NO_HEADER_HINT
    return OpenTable(
        connection,
        " union all ".join(queries),
        dict.fromkeys(every, "VARCHAR"),
        origin,
        files[0].kind,
        is_text=True,
        lacking=lacking,
        hint=hint,
    )


def _as_utf8(
    file: SourceFile, place: str, encoding: str | None, decoded: Path
) -> tuple[Path, str, str | None]:
    """Return the path of a file as UTF-8, the beginning of its text, and how it is compressed.

    UTF-16 and the given encoding are decoded here, to a file of their own: DuckDB would download an
    extension for most of them. Lines that end in several ways get one.

    Raises:
        InputError: the text is not of the encoding.
        OSError: the file cannot be read or decompressed.
    """
    with pa.input_stream(str(file.path), compression=file.compression) as stream:
        start = stream.read(_SAMPLE)
        while b"\n" not in start and b"\r" not in start and len(start) < _LONGEST_LINE:
            if not (more := stream.read(_SAMPLE)):
                break
            start += more
    mixed = b"\r\n" in start and re.search(rb"[^\r]\n", start) is not None
    zeros = {start[:1]: "utf-16-be", start[1:2]: "utf-16-le"}.get(b"\x00")
    known = "utf-16" if start.startswith((b"\xff\xfe", b"\xfe\xff")) else zeros
    if known is None and encoding is not None and (bad := _not_utf8(file)):
        known = encoding
        if bad < 0.25:  # in another encoding all its letters would be wrong ones
            raise InputError(f"{place}: some of it is not UTF-8, but most of it is: mend it")
    if known is None and not mixed:
        sample = start.decode("utf-8", errors="replace").removeprefix("\ufeff")
        return file.path, sample.replace("\r\n", "\n").replace("\r", "\n"), file.compression
    sample = ""
    try:
        with (
            pa.input_stream(str(file.path), compression=file.compression) as stream,
            io.TextIOWrapper(stream, known or "utf-8-sig", newline=None) as lines,
            decoded.open("w", encoding="utf-8", newline="\n") as written,
        ):
            while block := lines.read(_BLOCK):
                sample = sample or block[:_SAMPLE].removeprefix("\ufeff")
                written.write(block.removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        bad = error.object[error.start]
        raise InputError(
            f"{place}: has the byte 0x{bad:02x}, which is neither UTF-8 nor {known}"
        ) from error
    return decoded, sample, None


def _blocks(file: SourceFile) -> Iterator[bytes]:
    with pa.input_stream(str(file.path), compression=file.compression) as stream:
        while block := stream.read(_BLOCK):
            yield block


def _refuse_long_end(file: SourceFile, place: str) -> None:
    """Refuse a last line that is no row: DuckDB leaves one out that is longer than its buffer."""
    left = 0
    if file.compression is None:
        with file.path.open("rb") as plain:
            plain.seek(max(0, file.path.stat().st_size - _LONGEST_LINE))
            end = plain.read()
        left = len(end) - max(end.rfind(b"\n"), end.rfind(b"\r")) - 1
    else:
        for block in _blocks(file):
            last = max(block.rfind(b"\n"), block.rfind(b"\r"))
            left = left + len(block) if last < 0 else len(block) - last - 1
    if left >= _LONGEST_LINE:
        raise InputError(_too_long(place))


def _too_long(place: object) -> str:
    return f"{place}: has a line of more than {_LONGEST_LINE:,} bytes, which is no row"


def _not_utf8(file: SourceFile) -> float:
    """Return the share of the characters beyond ASCII that are no UTF-8."""
    broken, letters = 0, 0
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for block in chain(_blocks(file), [b""]):
        lenient = decoder.decode(block, final=not block)
        broken += lenient.count("\N{REPLACEMENT CHARACTER}")
        letters += len(lenient) - len(lenient.encode("ascii", "ignore"))
    return broken / max(letters, 1)


def _form_of(
    sample: str, kind: str, header: bool, compression: str | None, origin: str
) -> _TextForm:
    """Return the form of a text file by its first lines.

    A ``::`` file whose first line has a number or a date has no header, as those of MovieLens. The
    delimiter is the one of comma, tab, semicolon, bar and ``::`` that divides the first lines into
    equally many fields, the most if several do, or the one that a first line ``sep=;`` names, as
    Excel writes it. In a file with tabs a quote is a character like any other, unless its first
    line has quoted fields.

    Raises:
        InputError: the file is empty, is no text, or its header names no column.
    """
    if other := next(
        (kind for start, kind in _OTHER_KINDS.items() if sample.startswith(start)), ""
    ):
        raise InputError(f"{origin}: is {other}")
    if "\n" not in sample and len(sample) >= _LONGEST_LINE:
        raise InputError(_too_long(origin))
    if excel := _EXCEL_LINE.match(sample):
        sample = sample[excel.end() :]
    if not sample.strip():
        raise InputError(f"{origin}: the file is empty")
    first = sample.partition("\n")[0]
    usual = "\t" if kind in ("TSV", ATOMIC) else ","
    delimiter = excel[1] if excel else _delimiter_of(sample, usual)
    if delimiter == "::":
        header = header and not any(map(_VALUE_NAME.match, first.split("::")))
        fields, quoted = first.split("::"), False
    else:
        quoted = _has_quotes(first, delimiter)
        try:
            fields = next(_reader(io.StringIO(sample), delimiter, quoted))
        except csv.Error as error:  # a name of more than 128 KiB
            raise InputError(f"{origin}: its header cannot be read: {error}") from error
    names = [column.strip() for column in fields]
    if kind == ATOMIC:
        names = [_ATOMIC_TYPE.sub("", column) for column in names]
    if not header:
        names = [str(number) for number in range(1, len(names) + 1)]
    if not any(names):
        raise InputError(
            f"{origin}: its first line names no column: delete the line, or give --no-header if no "
            "line names them"
        )
    return _TextForm(tuple(names), delimiter, quoted, header, int(bool(excel)), compression)


def _delimiter_of(sample: str, default: str) -> str:
    """Return the delimiter that gives the first lines equally many fields, at least two."""
    lines = [line for line in sample.splitlines() if line.strip()]
    # The last line of a long sample is cut.
    lines = (lines[:-1] if len(sample) >= _SAMPLE // 4 else lines)[:_SAMPLED_LINES] or lines
    fields = {delimiter: _fields(lines, delimiter) for delimiter in _DELIMITERS}
    even = [d for d in _DELIMITERS if min(fields[d]) == max(fields[d]) > 1]
    if not even and all("::" in line for line in lines):
        return "::"
    several = even or [d for d in _DELIMITERS if fields[d][0] > 1]
    return max(several, key=lambda d: (fields[d][0], d == default), default=default)


def _fields(lines: Sequence[str], delimiter: str) -> list[int]:
    try:
        return [len(row) for row in _reader(lines, delimiter, _has_quotes(lines[0], delimiter))]
    except csv.Error:  # a field of more than 128 KiB
        return [1]


def _has_quotes(first: str, delimiter: str) -> bool:
    """Return whether quotes around fields belong to the form of a file, by its first line."""
    quoted = (re.fullmatch('".*"', field.strip()) for field in first.split(delimiter))
    return delimiter != "\t" or any(quoted)


def _reader(lines: Iterable[str], delimiter: str, quoted: bool) -> Iterator[list[str]]:
    return csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )


# --- Parquet and JSON lines -----------------------------------------------------------------------

_LARGE = {"UBIGINT", "HUGEINT", "UHUGEINT"}
_MOMENTS = {"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"}
_MOMENTS |= {"TIMESTAMP WITH TIME ZONE"}


def common_type(kinds: Iterable[str]) -> str | None:
    """Return the type that columns of several types have in common; None if they have none.

    Numbers remain numbers, dates remain times, and a mixture of either with text is text. A float
    of 32 bits has nothing in common with others: it may have been rounded.

    >>> common_type(["INTEGER", "BIGINT"]), common_type(["BIGINT", "VARCHAR"])
    ('BIGINT', 'VARCHAR')
    >>> common_type(["BIGINT", "BIGINT[]"]) is None
    True
    """
    found = {kind for kind in kinds if kind != '"NULL"'}
    if len(found) <= 1:
        return next(iter(found), "VARCHAR")
    if all(kind.endswith("[]") for kind in found):
        inner = common_type(kind[:-2] for kind in found)
        return None if inner is None else f"{inner}[]"
    plain = (kind for kind in found if not kind.startswith("DECIMAL"))
    if found & {"BLOB", "FLOAT"} or any(mark in kind for kind in plain for mark in "[("):
        return None
    if found <= WHOLE:
        return "HUGEINT" if found & _LARGE else "BIGINT"
    if all(k in WHOLE or k == "DOUBLE" or k.startswith("DECIMAL") for k in found):
        return "DOUBLE"
    return "TIMESTAMP" if found <= _MOMENTS else "VARCHAR"


def _open_parquet(
    files: Sequence[SourceFile], connection: duckdb.DuckDBPyConnection, origin: str, *, hive: bool
) -> OpenTable:
    """Open Parquet files as one table, though their columns and types may differ."""
    folders = _folders(files) if hive else {}
    partitions = ", ".join(f"{text(column)}: VARCHAR" for column in folders)
    options = f"hive_partitioning = {bool(folders)}" + (
        f", hive_types = {{{partitions}}}" if folders else ""
    )
    schemas = []
    for file in files:
        place = origin if len(files) == 1 else str(file.path)
        query = f"select * from read_parquet({texts([file.path])}, hive_partitioning = false)"
        try:
            own = pq.read_schema(file.path).names if file.compression is None else []
            if (twice := same_names(own)) is not None:
                raise InputError(f"{place}: two columns are named {twice}")
            schemas.append((_types(connection, query), file.path, place))
        except _UNREADABLE as error:
            raise refused(error, place, "Parquet") from error
    types: dict[str, str] = {}
    lacking: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    whole: dict[str, set[str]] = {}
    for column in dict.fromkeys(column for own, *_ in schemas for column in own):
        missing = [place for own, _, place in schemas if column not in own]
        if missing:
            lacking[column] = missing[0]
        kind, whole[column] = _agreed(connection, column, schemas)
        if kind.startswith("is "):
            unreadable[column] = f"{kind}: give it the same type in all files"
        else:
            types[column] = kind
    parts = []
    for own, alike in groupby(schemas, key=lambda one: one[0]):
        chosen = []
        for column, kind in types.items():
            value = name(column) if column in own else "null"
            if own.get(column) in whole.get(column, ()):
                value = _whole_of(column)
            chosen.append(f"({value})::{kind} as {name(column)}")
        chosen += [
            f"{name(column)}::{kind} as {name(column)}"
            for column, kind in folders.items()
            if column not in types
        ]
        paths = texts(path for _, path, _ in alike)
        parts.append(f"select {', '.join(chosen)} from read_parquet({paths}, {options})")
    types |= {column: kind for column, kind in folders.items() if column not in types}
    return OpenTable(
        connection, " union all ".join(parts), types, origin, "Parquet",
        lacking=lacking, unreadable=unreadable,
    )  # fmt: skip


def _agreed(
    connection: duckdb.DuckDBPyConnection,
    column: str,
    schemas: Sequence[tuple[Mapping[str, str], Path, str]],
) -> tuple[str, set[str]]:
    """Return the type of a column for all files, and the float types that become integers.

    Floats cannot tell apart all integers of 64 bits, and as text they are ``12.0``: whole ones
    become integers first. Without a common type, words say which types there are.
    """
    holders: dict[str, str] = {}
    for own, _, place in schemas:
        if "NULL" not in own.get(column, "NULL"):
            holders.setdefault(own[column], place)
    kind = common_type(holders)
    if kind is None:
        return " and ".join(f"is {own} in {place}" for own, place in [*holders.items()][:2]), set()
    floats = {own for own in holders if own == "DOUBLE" or own.startswith("DECIMAL")}
    whole: set[str] = set()
    for real in floats if len(holders) > 1 and kind in ("DOUBLE", "VARCHAR") else ():
        paths = texts(path for types, path, _ in schemas if types.get(column) == real)
        value, integer = name(column), _whole_of(column)
        ((is_whole,),) = connection.execute(
            f"select bool_and(coalesce({integer} = {value}, isnan({value}::double), true)) "
            f"from read_parquet({paths}, hive_partitioning = false)"
        ).fetchall()
        if is_whole is not False:
            whole.add(real)
    if kind == "DOUBLE" and whole == floats:
        kind = common_type({*holders} - floats | {"BIGINT"}) or kind
    return kind, whole


def _whole_of(column: str) -> str:
    """Return floats as integers in SQL, NaN as null: pandas writes so where some are missing."""
    quoted = name(column)
    return f"case when not isnan({quoted}::double) then try_cast({quoted} as bigint) end"


def _folders(files: Sequence[SourceFile]) -> dict[str, str]:
    """Return the columns that folders such as day=2024-01-05 hold, with types that fit all."""
    values: dict[str, set[str]] = {}
    for file in files:
        for folder in file.path.parts[:-1]:
            column, equals, value = folder.partition("=")
            if equals:
                values.setdefault(column, set()).add(unquote(value))
    patterns = {"BIGINT": PLAIN_INTEGER, "DATE": r"\d{4}-\d\d-\d\d"}
    return {
        column: next(
            (kind for kind, form in patterns.items() if all(re.fullmatch(form, v) for v in own)),
            "VARCHAR",
        )
        for column, own in values.items()
    }


def _open_json(
    files: Sequence[SourceFile], connection: duckdb.DuckDBPyConnection, origin: str
) -> OpenTable:
    """Open JSON lines as one table: numbers and lists as they are written, anything else as text.

    DuckDB's own types would make dates of some texts.
    """
    every = " union all ".join(
        f"select json from read_ndjson_objects({texts([file.path])}, "
        f"maximum_object_size = {_LONGEST_LINE}, compression = '{file.compression or 'none'}')"
        for file in files
    )
    kinds = connection.execute(
        "select key, list(distinct json_type(value)), "
        "bool_or(json_type(value) = 'UBIGINT' and try_cast(value as bigint) is null) from ("
        "select row_number() over () as place, unnest(json_keys(json)) as key, "
        "unnest(range(len(json_keys(json)))) as number, "
        f"unnest(json_extract(json, '$.*')) as value from ({every})) "
        "group by key order by min(place), min(number)"
    ).fetchall()
    types, chosen = {}, []
    for column, found, is_large in kinds:
        kind = types[column] = "HUGEINT" if is_large else _json_type({*found} - {"NULL"})
        how = "json_extract" if kind.endswith("[]") else "json_extract_string"
        path = text('$."' + column.replace('"', '\\"') + '"')
        chosen.append(f"{how}(json, {path})::{kind} as {name(column)}")
    query = f"select {', '.join(chosen)} from ({every})"
    return OpenTable(connection, query, types, origin, "JSON lines")


def _json_type(kinds: set[str]) -> str:
    if kinds and kinds <= {"BIGINT", "UBIGINT"}:
        return "BIGINT"
    if kinds and kinds <= {"BIGINT", "UBIGINT", "DOUBLE"}:
        return "DOUBLE"
    return {"BOOLEAN": "BOOLEAN", "ARRAY": "VARCHAR[]"}.get("".join(kinds), "VARCHAR")
