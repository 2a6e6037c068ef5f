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
from typing import NamedTuple

import numpy as np
import polars as pl

_LINE = "line"
_AT_ONCE = 1 << 24
"""Characters in memory."""
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
    source = source.resolve()
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
        field = rf'(?:\s*{_ENCLOSED}|[^"{d}]+|)'
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


class _Opened(NamedTuple):
    """A line in which a quote opens that it does not close."""

    line: int
    fits: bool
    """Whether it has the delimiters of a row."""
    others: int
    """Lines up to it that do not fit a row."""
    well: bool
    """Whether the quote opens a field."""


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
        self._opened: _Opened | None = None
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
            line, is_row, count = int(numbers[row]), bool(fits[row]), int(others[row])
            if self._opened is None:
                self._opened = _Opened(line, is_row, count, well=bool(found["opens"][row]))
            elif self._opened.well and found["closes"][row]:
                self._close(self._opened, line, is_row, count)
                self._opened = None
            else:
                self._opened = None
        if self._strange is None and wrong.any():
            self._strange = int(numbers[wrong.argmax()])
        self._encloses |= bool(found["encloses"].any())
        self._longer |= bool(found["is_longer"].any())
        self._rows += int(found["is_row"].sum())
        self._filled += int((~found["blank"]).sum())
        self._others, self._number = int(others[-1]), int(numbers[-1])

    def _close(self, opened: _Opened, last: int, fits: bool, others: int) -> None:
        """Count a field of several lines."""
        self._spans += 1
        if self._columns == 1 or not (opened.fits and fits):
            self._encloses = True
            return
        between = last - opened.line
        # Two lines tell nothing: "12 Main St and the next one, Springfield, IL".
        if between < 2 or others - opened.others > (1 - _MOST) * between:
            return
        is_long = between >= _LONG
        self._long += is_long
        self._short += not is_long
        if self._first[is_long] == (0, 0):
            self._first[is_long] = opened.line, last

    def result(self) -> Quotes:
        """Return what the quotes are."""
        strange = self._strange
        if strange is None and self._opened is not None:
            strange = self._opened.line
        like_rows = not self._longer and self._rows >= _MOST * self._filled
        if strange is not None and like_rows and not self._encloses:
            return Quotes(enclose=False, strange=strange)
        # Short ones are chance where texts of several lines are usual.
        short = self._short if self._short >= self._spans / 2 else 0
        found = [self._first[True]] * bool(self._long) + [self._first[False]] * bool(short)
        first = min(found, default=(0, 0))
        return Quotes(strange=strange, swallowed=self._long + short, first_swallowed=first)


def _lines(source: Path | bytes, before: int) -> Iterator[pl.DataFrame]:
    """Yield the lines after those before the first row, many at a time, each by itself."""
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as content:
        text = io.TextIOWrapper(content, encoding="utf-8", errors="replace", newline="\n")
        for _ in range(before):
            text.readline()
        while lines := text.readlines(_AT_ONCE):
            plain = pl.Series(_LINE, lines).str.strip_suffix("\n").str.strip_suffix("\r")
            yield plain.to_frame()
