"""Quotes in delimited text: marks around fields, or characters of titles such as 12" vinyl."""

from __future__ import annotations

import io
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

_LINE, _NUMBER = "line", "number"
_NO_CHARACTER = "\x01"  # of text, so that a line is one field
_FIRST = 1_000
_ENCLOSED = '"(?:[^"]|"")*"'


@dataclass(frozen=True, slots=True)
class QuotedLines:
    """The lines of a delimited text, each by itself: a field in quotes may span several.

    Every question reads the file once; `enclose_fields` reads no line of a file without quotes.
    """

    source: Path | bytes
    """The path of a UTF-8 file, or the content of one."""
    delimiter: str
    columns: int
    skipped: int
    """The number of lines before the header or the first row."""

    def enclose_fields(self) -> bool:
        """Return whether quotes are marks around fields.

        They are characters if no field begins with one. And if some are not around a field of their
        line, although each line has as many delimiters as a row, and no field is enclosed: titles
        that begin with a quote would else swallow the rows up to the next such title.
        """
        delimiter = re.escape(self.delimiter)
        whole_field = rf"(?:^|{delimiter})\s*{_ENCLOSED}\s*(?:$|{delimiter})"
        if not _has_quote(self.source) or any(
            re.search(whole_field, line) for line in self._first()
        ):
            return True
        begins = pl.col(_LINE).str.contains(rf'(?:^|{delimiter})\s*"')
        strange = self._is_strange()
        found = (
            self._lines()
            .select(begins=begins.any(), strange=strange.any())
            .collect(engine="streaming")
        )
        if not found["begins"].item():
            return False
        if not found["strange"].item():
            return True
        enclosed = pl.col(_LINE).str.contains(whole_field)
        rows = (self._delimiters(pl.col(_LINE)) == self.columns - 1) | (pl.col(_LINE) == "")
        found = (
            self._lines()
            .select(enclosed=enclosed.any(), rows=rows.all())
            .collect(engine="streaming")
        )
        return found["enclosed"].item() or not found["rows"].item()

    def swallowed(self) -> list[tuple[int, int]]:
        """Return the first and last line of fields that seem to have swallowed rows, from line 1.

        A quote opens in the first line and closes in the last, but each line between and the two
        have the fields of a row.
        """
        if not _has_quote(self.source):
            return []
        outside = self._delimiters(pl.col(_LINE).str.replace_all(_ENCLOSED, ""))
        fits = (outside == self.columns - 1).alias("fits")
        odd = self._lines().filter(_odd()).select(_NUMBER, fits).collect(engine="streaming")
        starts, ends = odd.gather_every(2), odd.gather_every(2, offset=1)
        pairs = pl.concat(
            [starts[: len(ends)], ends.rename({_NUMBER: "end", "fits": "ends"})],
            how="horizontal",
        )
        pairs = pairs.filter("fits", "ends").select(_NUMBER, "end")
        if pairs.is_empty():
            return []
        within = self._lines().filter(~fits).select(pl.col(_NUMBER).alias("other"))
        others = within.collect(engine="streaming")["other"]
        before = others.search_sorted(pairs[_NUMBER]), others.search_sorted(pairs["end"])
        return [(first, last) for first, last in pairs.filter(before[0] == before[1]).rows()]

    def first_strange(self) -> int | None:
        """Return the first line, from 1, with a quote that is not around a field of the line."""
        found = self._lines().filter(self._is_strange()).head(1).collect(engine="streaming")
        return found[_NUMBER].item() if len(found) else None

    def _first(self) -> list[str]:
        """Return lines of the beginning, which tell of most files what quotes are."""
        return self._lines().head(_FIRST).select(_LINE).collect().to_series().to_list()

    def _lines(self) -> pl.LazyFrame:
        """Return the lines with their numbers, without the ones that are skipped."""
        source = io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source
        lines = pl.scan_csv(
            source,
            separator=_NO_CHARACTER,
            quote_char=None,
            has_header=False,
            new_columns=[_LINE],
            infer_schema=False,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
            row_index_name=_NUMBER,
            row_index_offset=1,
            skip_rows=self.skipped,
            glob=False,
        )
        plain = pl.col(_LINE).fill_null("").str.strip_suffix("\r")
        return lines.with_columns(pl.col(_NUMBER) + self.skipped, plain)

    def _is_strange(self) -> pl.Expr:
        """Whether a line has a quote that is not closed in it, or more in a field behind one."""
        delimiter = re.escape(self.delimiter)
        return _odd() | pl.col(_LINE).str.contains(f"(?:^|{delimiter}){_ENCLOSED}[^{delimiter}]")

    def _delimiters(self, text: pl.Expr) -> pl.Expr:
        return text.str.count_matches(self.delimiter, literal=True)


def _odd() -> pl.Expr:
    """Whether a line has an odd number of quotes, so that one of them is not closed in it."""
    return pl.col(_LINE).str.count_matches('"', literal=True) % 2 == 1


def _has_quote(source: Path | bytes) -> bool:
    if isinstance(source, bytes):
        return b'"' in source
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b'"') >= 0
