"""Tables in delimited text: their encoding, delimiter, header and the types of their columns."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import polars as pl

from recsys.data.missing import MISSING_WORDS
from recsys.data.quotes import Quotes, find_quotes
from recsys.data.source_files import SourceFile
from recsys.data.text_encodings import SAMPLE, as_utf8, first_line_of_another_encoding
from recsys.errors import InputError, first_line

logger = logging.getLogger(__name__)

_INTEGER = r"^(?:0|-?[1-9][0-9]{0,17})$"
_VALUE_NAME = re.compile(r"^\s*(?:-?\d+(?:[.,]\d+)?|\d{4}-\d\d-\d\d.*)\s*$")
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
_SAMPLED_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class TextTable:
    """A delimited text file, its delimiter and the names of its columns."""

    source: Path | bytes
    """The path of a plain UTF-8 file, or the content of another one as UTF-8."""
    delimiter: str
    names: tuple[str, ...]
    """The header without surrounding blanks, or 1, 2, … if the file has none."""
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

    def scan(self) -> pl.LazyFrame:
        """Return all columns as text; a blank line is a row of nulls."""
        source = io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source
        return pl.scan_csv(
            source,
            separator=self.delimiter,
            quote_char='"' if self.quoted else None,
            skip_rows=self.skipped,
            has_header=self.has_header,
            new_columns=list(self.names),
            infer_schema=False,
            glob=False,
        )

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

    Byte order marks, UTF-8 and UTF-16 are recognised; other text has the encoding that is given.
    The delimiter is the one of comma, tab, semicolon, bar and ``::`` that divides the first lines
    into equally many fields, the most if several do, or the one that a first line ``sep=;`` names,
    as Excel writes it. In a file with tabs a quote is a character like any other, unless its first
    line has quoted fields; in other files see `find_quotes`.

    Raises:
        InputError: the file is empty, is not text, its header has a stray quote, or two columns
            have the same name.
        OSError: it cannot be read or decompressed.
    """
    source, sample = as_utf8(file, encoding)
    if kind := next((kind for start, kind in _OTHER_KINDS.items() if sample.startswith(start)), ""):
        raise InputError(f"{origin}: is {kind}")
    if excel := _EXCEL_LINE.match(sample):
        sample = sample[excel.end() :]
    if not sample.strip():
        raise InputError(f"{origin}: the file is empty")
    delimiter = excel[1] if excel else _delimiter_of(sample, "\t" if file.kind == "TSV" else ",")
    if delimiter == _DOUBLE_COLON:
        content = source if isinstance(source, bytes) else source.read_bytes()
        source, delimiter = content.replace(b"::", b"\t"), "\t"
        sample = sample.replace(_DOUBLE_COLON, delimiter)
    quoted = _has_quotes(_first_line(sample), delimiter)
    start = io.StringIO(sample)
    first = [name.strip() for name in next(_reader(start, delimiter, quoted=quoted))]
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
    if twice := next((name for name in names if names.count(name) > 1), None):
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


def typed(table: pl.DataFrame) -> pl.DataFrame:
    """Strip blanks around text, and make columns integers if every value is a plain integer.

    Words for missing values count as integers, unless a column has nothing else; "007" does not.

    >>> typed(pl.DataFrame({"a": ["1", " 2 "], "b": ["007", "8"], "c": ["3", "NULL"]})).rows()
    [(1, '007', 3), (2, '8', None)]
    """
    table = table.select(pl.all().str.strip_chars())
    # Most columns of text show it in their first rows.
    likely = [name for name in table.columns if _is_integer(table[name].head(_SAMPLED_ROWS))]
    integer = [name for name in likely if _is_integer(table[name]) and _has_any(table[name])]
    return _with_integers(table, integer)


def typed_part(part: pl.DataFrame, integer: Sequence[str]) -> pl.DataFrame:
    """Convert a part of a table as `typed` does, given the columns that are integers."""
    return _with_integers(part.select(pl.all().str.strip_chars()), integer)


def _with_integers(table: pl.DataFrame, integer: Sequence[str]) -> pl.DataFrame:
    return table.with_columns(pl.col(name).cast(pl.Int64, strict=False) for name in integer)


def integer_columns(table: pl.LazyFrame) -> list[str]:
    """Return the columns that `typed` makes integers, without holding the table in memory."""
    names = table.collect_schema().names()
    stripped = pl.all().str.strip_chars()
    words = pl.Series(MISSING_WORDS).implode()
    plain = table.select(stripped.str.contains(_INTEGER).any())
    others = table.select((stripped.str.contains(_INTEGER) | stripped.is_in(words)).all())
    found, fitting = pl.collect_all([plain, others], engine="streaming")
    return [name for name in names if found[name].item() and fitting[name].item()]


def likely_integers(batch: pl.DataFrame) -> tuple[set[str], set[str]]:
    """Return the columns of text that `typed` might make integers, and those that have an integer.

    Of a table that is read in batches, `typed` makes integers of the columns that are among the
    first in every batch and among the second in one.
    """
    stripped = batch.select(pl.all().str.strip_chars())
    integers = {name for name in stripped.columns if _is_integer(stripped[name])}
    return integers, {name for name in integers if _has_any(stripped[name])}


def _is_integer(values: pl.Series) -> bool:
    """Return whether text has nothing but plain integers and words for missing values."""
    others = values.filter(~values.str.contains(_INTEGER)).unique()
    return others.is_in(list(MISSING_WORDS)).all()


def _has_any(values: pl.Series) -> bool:
    """Return whether text has a plain integer."""
    return values.str.contains(_INTEGER).any()


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


def _fields(lines: Sequence[str], delimiter: str) -> list[int]:
    quoted = _has_quotes(lines[0], delimiter)
    return [len(row) for row in _reader(lines, delimiter, quoted=quoted)]


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
