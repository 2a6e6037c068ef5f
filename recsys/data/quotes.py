"""Quotes in delimited text: marks around fields, or characters of titles such as 12" vinyl.

The standard is RFC 4180, https://www.rfc-editor.org/rfc/rfc4180: quotes are around whole fields,
which may span several lines, and doubled within them.
"""

from __future__ import annotations

import io
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl

_LINE = "line"
_NO_CHARACTER = "\x1e"  # of text, so that a line is one field
_AT_ONCE = 1 << 18
"""Lines in memory."""
_ENCLOSED = '"(?:[^"]|"")*"'
_MOST = 0.9
"""From this share on, lines with the delimiters of a row make a text look like rows."""
_LONG = 10
"""Lines of a field that can hardly look like rows by chance."""


@dataclass(frozen=True, slots=True)
class Quotes:
    """What the quotes of a text file are."""

    enclose: bool = True
    """Whether they are marks around fields, and not characters."""
    strange: int | None = None
    """The first line, from 1, with a quote that is not as the standard has it."""
    swallowed: int = 0
    """The number of fields that seem to have swallowed rows: a quote opens in one line and closes
    in a later one, but the lines have the delimiters of rows."""
    first_swallowed: tuple[int, int] = (0, 0)
    """The first and last line of the first of them."""


def find_quotes(source: Path | bytes, delimiter: str, columns: int, before: int) -> Quotes:
    """Return what quotes are, from all lines of a text; a file that stays the same is read once.

    They are marks where all are as the standard has them. If not, they are characters where no
    field is enclosed in them and the lines have the delimiters of rows.

    Args:
        source: the path of a UTF-8 file, or the content of one.
        delimiter: of the fields.
        columns: their number.
        before: the number of lines before the first row.

    Raises:
        OSError: the file cannot be read.
    """
    if isinstance(source, bytes):
        return _found(source, delimiter, columns, before) if b'"' in source else Quotes()
    status = source.stat()
    return _of_file(source, status.st_mtime_ns, status.st_size, delimiter, columns, before)


@lru_cache(maxsize=1_000)
def _of_file(
    path: Path, changed: int, size: int, delimiter: str, columns: int, before: int
) -> Quotes:
    if not size:
        return Quotes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b'"') < 0:
            return Quotes()
    return _found(path, delimiter, columns, before)


def _found(source: Path | bytes, delimiter: str, columns: int, before: int) -> Quotes:
    reading = _Reading(delimiter, columns, before)
    for lines in _lines(source, before):
        reading.add(lines)
    return reading.result()


class _Questions:
    """What is asked of each line by itself."""

    def __init__(self, delimiter: str, columns: int) -> None:
        line, d = pl.col(_LINE), re.escape(delimiter)
        field = f'(?:{_ENCLOSED}|[^"{d}]+|)'
        rest = f'(?:{d}{field})*{d}"(?:[^"]|"")*$'  # of a line in which another field opens
        opens = f'^(?:{field}{d})*"(?:[^"]|"")*$'
        closes = f'^[^"]*(?:""[^"]*)*"(?:$|(?:{d}{field})*$|{rest})'
        # Also "the "best" one", which is no standard, but hardly a title.
        encloses = rf'(?:^|{d})\s*(?:{_ENCLOSED}|"[^{d}]*")\s*(?:$|{d})'
        outside = line.str.replace_all(_ENCLOSED, "").str.count_matches(delimiter, literal=True)
        plain = line.str.count_matches(delimiter, literal=True)
        self.is_whole = line.str.contains(f"^(?:{field}{d})*{field}$")
        """Whether all quotes of the line are around its fields, or doubled in them."""
        self.others = [
            self.is_whole.alias("whole"),
            (line.str.count_matches('"', literal=True) % 2 == 1).alias("odd"),
            line.str.contains(opens).alias("opens"),
            line.str.contains(closes).alias("closes"),
            line.str.contains(encloses).alias("encloses"),
            (outside == columns - 1).alias("fits"),
            (plain == columns - 1).alias("is_row"),
            (plain >= columns).alias("is_longer"),
            (line.str.strip_chars() == "").alias("blank"),
        ]


class _Reading:
    """What is known of the lines so far."""

    def __init__(self, delimiter: str, columns: int, before: int) -> None:
        self._questions = _Questions(delimiter, columns)
        self._columns = columns
        self._number = before
        """Of the last line."""
        self._strange: int | None = None
        self._encloses = self._longer = False
        self._rows = self._filled = 0
        self._opened: tuple[int, bool, int] | None = None
        """The line of the quote that is open, whether it fits a row, and the others before it."""
        self._others = 0
        """Lines that do not fit a row."""
        self._spans = self._short = self._long = 0
        self._first = {False: (0, 0), True: (0, 0)}
        """The first short field, and the first long one, that seems to have swallowed rows."""

    def add(self, lines: pl.DataFrame) -> None:
        """Read more lines."""
        usual = self._encloses and self._opened is None  # else more must be known
        if lines.is_empty() or (usual and lines.select(self._questions.is_whole.all()).item()):
            self._number += len(lines)
            return
        found = {one.name: one.to_numpy() for one in lines.select(self._questions.others)}
        odd, fits = found["odd"], found["fits"] | found["blank"]
        numbers = self._number + 1 + np.arange(len(odd))
        before = np.cumsum(odd) - odd + (self._opened is not None)
        begins_well = found["whole"] | found["opens"]
        wrong = np.where(before % 2 == 1, odd & ~found["closes"], ~begins_well)
        others = self._others + np.cumsum(~fits)
        for row in np.flatnonzero(odd).tolist():
            if self._opened is None:
                self._opened = int(numbers[row]), bool(fits[row]), int(others[row])
            else:
                self._close(int(numbers[row]), bool(fits[row]), int(others[row]))
        if self._strange is None and wrong.any():
            self._strange = int(numbers[wrong.argmax()])
        self._encloses |= bool(found["encloses"].any())
        self._longer |= bool(found["is_longer"].any())
        self._rows += int(found["is_row"].sum())
        self._filled += int((~found["blank"]).sum())
        self._others, self._number = int(others[-1]), int(numbers[-1])

    def _close(self, last: int, fits: bool, others: int) -> None:
        """Count a field of several lines."""
        assert self._opened is not None  # noqa: S101 - it is closed
        first, first_fits, others_before = self._opened
        self._opened = None
        self._spans += 1
        if first_fits and fits and others - others_before <= (1 - _MOST) * (last - first):
            is_long = last - first >= _LONG
            self._long += is_long
            self._short += not is_long
            if self._first[is_long] == (0, 0):
                self._first[is_long] = first, last

    def result(self) -> Quotes:
        """Return what the quotes are."""
        strange = self._strange
        if strange is None and self._opened is not None:
            strange = self._opened[0]
        if strange is not None:
            like_rows = not self._longer and self._rows >= _MOST * self._filled
            return Quotes(self._encloses or not like_rows, strange)
        if self._columns == 1:
            return Quotes()
        # Short ones are chance where texts of several lines are usual.
        short = self._short if self._short >= self._spans / 2 else 0
        found = [self._first[True]] * bool(self._long) + [self._first[False]] * bool(short)
        return Quotes(swallowed=self._long + short, first_swallowed=min(found, default=(0, 0)))


def _lines(source: Path | bytes, before: int) -> Iterator[pl.DataFrame]:
    """Yield the lines after those before the first row, many at a time, each by itself."""
    lines = pl.scan_csv(
        io.BytesIO(source) if isinstance(source, bytes) else source,
        separator=_NO_CHARACTER,
        quote_char=None,
        has_header=False,
        schema={_LINE: pl.String},
        encoding="utf8-lossy",
        truncate_ragged_lines=True,
        skip_rows=before,
        glob=False,
    )
    plain = pl.col(_LINE).fill_null("").str.strip_suffix("\r")
    yield from lines.select(plain).collect_batches(chunk_size=_AT_ONCE, maintain_order=True)
