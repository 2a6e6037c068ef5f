"""Tables in delimited text: their encoding, delimiter and header."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import polars as pl

from recsys.data.quotes import Quotes, find_quotes
from recsys.data.source_files import ATOMIC, SourceFile, refuse_long_line
from recsys.data.text_encodings import SAMPLE, as_utf8, first_line_of_another_encoding
from recsys.errors import InputError, first_line

logger = logging.getLogger(__name__)

_VALUE_NAME = re.compile(r"^\s*(?:-?\d+(?:[.,]\d+)?|\d{4}-\d\d-\d\d.*)\s*$")
_ATOMIC_TYPE = re.compile(r":(?:token|float)(?:_seq)?$")
_DELIMITERS = (",", "\t", ";", "|")
_DOUBLE_COLON = "::"
_EXCEL_LINE = re.compile(r'"?sep=([,;|\t])"?\r?\n')
_OTHER_KINDS = {
    "PAR1": "a Parquet file: name it .parquet",
    "PK\x03\x04": "a zip archive or Excel workbook: extract or export it",
    "\x1f\ufffd": "compressed: name it .csv.gz",
    "BZh": "compressed: name it .csv.bz2",
    "(\ufffd/\ufffd": "compressed: name it .csv.zst",
}
"""How files that are no text begin, where bytes that are not UTF-8 are the replacement mark."""
_BROKEN_FIELD = ("malformed", "could not parse")
"""What polars says of a quote that does not close a field."""
_STRAY_QUOTE = "line {} has a quote that is neither around a whole field nor doubled"
_SAMPLED_LINES = 20


@dataclass(frozen=True, slots=True)
class TextTable:
    """A delimited text file, its delimiter and the names of its columns."""

    source: Path | bytes
    """The path of a plain UTF-8 file, or the content of another one as UTF-8."""
    delimiter: str
    names: tuple[str, ...]
    """The header without surrounding blanks, empty for a column that it does not name; or 1, 2, …
    if the file has none."""
    has_header: bool
    origin: str
    quoted: bool = True
    """Whether quotes around a field belong to the file's form."""
    skipped: int = 0
    """The number of lines before the header or the first row."""
    header_lines: int = 0
    """The number of lines of the header."""
    header_in_quotes: bool = False
    """Whether names in the header have delimiters or line breaks, in quotes."""
    header_has_inches: bool = False
    """Whether the header, of one line, has an odd number of quotes, such as ``12" vinyl``."""
    quotes: Quotes = field(default_factory=Quotes)
    """What is known of the quotes."""

    @property
    def header_looks_like_data(self) -> bool:
        """Whether a number or a date is among the names in the header."""
        return self.has_header and any(_VALUE_NAME.match(name) for name in self.names)

    @property
    def columns(self) -> list[str]:
        """The columns that have a name: others number rows, or were left behind by a program."""
        return [name for name in self.names if name]

    @property
    def form(self) -> tuple[object, ...]:
        """What files have in common that one `scan` reads."""
        is_held = isinstance(self.source, bytes)
        return is_held, self.names, self.delimiter, self.quoted, self.skipped, self.has_header

    def scan(self, *others: TextTable) -> pl.LazyFrame:
        """Return the columns with names as text; a blank line is a row of nulls.

        Args:
            others: files of the same `form`, whose rows follow.
        """
        sources = [
            io.BytesIO(text.source) if isinstance(text.source, bytes) else text.source
            for text in (self, *others)
        ]
        unique = [name or f"\0{place}" for place, name in enumerate(self.names)]
        rows = pl.scan_csv(
            sources,  # type: ignore[arg-type]
            separator=self.delimiter,
            quote_char='"' if self.quoted else None,
            skip_rows=self.skipped,
            has_header=self.has_header,
            new_columns=unique,
            infer_schema=False,
            glob=False,
        )
        return rows.select(self.columns)

    def explain(self, error: Exception) -> str:
        """Return why the file cannot be read, with the row if a row has too many fields."""
        line = first_line_of_another_encoding(self.source) if "utf-8" in str(error) else None
        if line is not None:
            return f"it is neither UTF-8 nor UTF-16 text, from line {line} on: {_ENCODING_HINT}"
        found = self._ragged_row() if "more fields" in str(error) else None
        if found is None:
            broken = any(word in str(error) for word in _BROKEN_FIELD)
            line = self.quotes.strange if self.quoted and broken else None
            if line is not None:
                return _STRAY_QUOTE.format(line)
            return first_line(error)
        row, fields = found
        head = "the header" if self.has_header else "the first row"
        return f"data row {row} has {fields} fields, {head} has {len(self.names)}"

    def with_quotes_read(self) -> TextTable:
        """Find out what quotes are; where they are characters of titles, take them for such."""
        if not self.quoted:
            return self
        before = self.skipped + (0 if self.header_has_inches else self.header_lines)
        quotes = find_quotes(self.source, self.delimiter, len(self.names), before)
        return replace(self, quotes=quotes, quoted=quotes.enclose or self.header_in_quotes)

    def warn_of_swallowed_rows(self) -> None:
        """Log a warning if fields in quotes seem to have swallowed rows."""
        if self.quoted and self.quotes.swallowed:
            logger.warning(
                "%s: lines %d to %d are one row, because a quote opens in the first of them and "
                "closes in the last, but each looks like a row (%d such places): double the quotes "
                "if they are characters of a title",
                *(self.origin, *self.quotes.first_swallowed, self.quotes.swallowed),
            )

    def _ragged_row(self) -> tuple[int, int] | None:
        """Return the number, from 1, of the first row with too many fields, and their number."""
        if isinstance(self.source, bytes):
            text = io.StringIO(self.source.decode(errors="replace"), newline="")
        else:
            text = io.StringIO(self.source.read_text("utf-8", errors="replace"), newline="")
        rows = islice(_reader(text, self.delimiter, quoted=self.quoted), self.skipped, None)
        for row, fields in enumerate(rows):
            if len(fields) > len(self.names):
                return row + (not self.has_header), len(fields)
        return None


def open_text(
    file: SourceFile, header: bool, origin: str, encoding: str | None = None
) -> TextTable:
    """Find the encoding, the delimiter and the names of the columns of a text file.

    A ``::`` file whose first line has a number or a date has no header, as those of MovieLens. Byte
    order marks, UTF-8 and UTF-16 are recognised; other text has the encoding that is given.
    The delimiter is the one of comma, tab, semicolon, bar and ``::`` that divides the first lines
    into equally many fields, the most if several do, or the one that a first line ``sep=;`` names,
    as Excel writes it. In a file with tabs a quote is a character like any other, unless its first
    line has quoted fields; in other files see `find_quotes`.

    Raises:
        InputError: the file is empty, is not text, its header has a stray quote or no name, or two
            columns have the same name.
        OSError: it cannot be read or decompressed.
    """
    source, sample = as_utf8(file, encoding)
    if kind := next((kind for start, kind in _OTHER_KINDS.items() if sample.startswith(start)), ""):
        raise InputError(f"{origin}: is {kind}")
    refuse_long_line(0 if "\n" in sample else len(sample), origin)
    if excel := _EXCEL_LINE.match(sample):
        sample = sample[excel.end() :]
    if not sample.strip():
        raise InputError(f"{origin}: the file is empty")
    usual = "\t" if file.kind in ("TSV", ATOMIC) else ","
    delimiter = excel[1] if excel else _delimiter_of(sample, usual)
    if delimiter == _DOUBLE_COLON:
        header = header and not any(map(_VALUE_NAME.match, _first_line(sample).split("::")))
        content = source if isinstance(source, bytes) else source.read_bytes()
        source, delimiter = content.replace(b"::", b"\t"), "\t"
        sample = sample.replace(_DOUBLE_COLON, delimiter)
    quoted = _has_quotes(_first_line(sample), delimiter)
    start = io.StringIO(sample)
    first = _fields_of_header(start, delimiter, quoted, origin, file.kind)
    lines = max(1, sample.count("\n", 0, start.tell()))
    if header and quoted and _swallows_rows(sample.split("\n")[:lines], delimiter, len(first)):
        raise InputError(f"{origin}: {_STRAY_QUOTE.format(1 + bool(excel))}")
    names = first if header else [str(number) for number in range(1, len(first) + 1)]
    in_quotes = lines > 1 or _first_line(sample).count(delimiter) >= len(names)
    table = TextTable(
        source,
        delimiter,
        tuple(names),
        header,
        origin,
        quoted,
        skipped=int(bool(excel)),
        header_lines=lines if header else 0,
        header_in_quotes=header and in_quotes,
        header_has_inches=header and lines == 1 and _first_line(sample).count('"') % 2 == 1,
    )
    if not table.columns:
        raise InputError(
            f"{origin}: its first line names no column: delete the line, or give --no-header if no "
            "line names them"
        )
    if twice := next((name for name, count in Counter(table.columns).items() if count > 1), None):
        hint = NO_HEADER_HINT if table.header_looks_like_data else ""
        raise InputError(f"{origin}: two columns are named {twice!r}{hint}")
    table = table.with_quotes_read()
    if table.quoted and table.header_has_inches:
        raise InputError(f"{origin}: {_STRAY_QUOTE.format(1 + table.skipped)}")
    return table


_ENCODING_HINT = (
    "convert it to UTF-8; a log may be prepared, and appended, in another encoding with "
    "--encoding, such as cp1252 (in Python encoding=)"
)

ONE_COLUMN_HINT = "; fields are divided by comma, tab, semicolon, bar or ::"
"""What messages add if a text file has a single column."""

NO_HEADER_HINT = "; the first line looks like data: if it is no header, give --no-header"
"""What messages add if the names of columns look like values."""


def _delimiter_of(sample: str, default: str) -> str:
    """Return the delimiter that gives the first lines equally many fields, at least two."""
    lines = [line for line in sample.splitlines() if line.strip()]
    # The last line of a long sample is cut.
    lines = (lines[:-1] if len(sample) >= SAMPLE // 4 else lines)[:_SAMPLED_LINES] or lines
    fields = {delimiter: _fields(lines, delimiter) for delimiter in _DELIMITERS}
    even = [d for d in _DELIMITERS if min(fields[d]) == max(fields[d]) > 1]
    if not even and all(_DOUBLE_COLON in line for line in lines):
        return _DOUBLE_COLON
    several = even or [d for d in _DELIMITERS if fields[d][0] > 1]
    return max(several, key=lambda d: (fields[d][0], d == default), default=default)


def _fields_of_header(
    lines: io.StringIO, delimiter: str, quoted: bool, origin: str, kind: str
) -> list[str]:
    """Return the fields of the first line, without the types of atomic files."""
    try:
        fields = [name.strip() for name in next(_reader(lines, delimiter, quoted=quoted))]
    except csv.Error as error:  # a name of more than 128 KiB
        raise InputError(f"{origin}: its header cannot be read: {error}") from error
    return [_ATOMIC_TYPE.sub("", name) for name in fields] if kind == ATOMIC else fields


def _fields(lines: Sequence[str], delimiter: str) -> list[int]:
    quoted = _has_quotes(lines[0], delimiter)
    try:
        return [len(row) for row in _reader(lines, delimiter, quoted=quoted)]
    except csv.Error:  # a field of more than 128 KiB
        return [1]


def _has_quotes(first: str, delimiter: str) -> bool:
    """Return whether quotes around fields belong to the form of a file, by its first line."""
    fields = (field.strip() for field in first.split(delimiter))
    return delimiter != "\t" or any(re.fullmatch('".*"', field) for field in fields)


def _swallows_rows(header: Sequence[str], delimiter: str, columns: int) -> bool:
    """Return whether a quote in the lines of a header has made rows a part of it."""
    is_open = "".join(header).count('"') % 2 == 1
    # Two fields may have a delimiter in each line by chance: '"a, b', 'c",item'.
    like_rows = columns > 2 and all(line.count(delimiter) == columns - 1 for line in header)
    return len(header) > 1 and (is_open or like_rows)


def _first_line(sample: str) -> str:
    return sample.partition("\n")[0]


def _reader(lines: Iterable[str], delimiter: str, *, quoted: bool) -> Iterator[list[str]]:
    return csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    )
