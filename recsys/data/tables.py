"""Tables from files and frames, with one-line errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import narwhals as nw
import polars as pl
from narwhals.exceptions import NarwhalsError
from narwhals.typing import IntoFrame

from recsys.config import ROW_ORDER
from recsys.data.bytes_columns import utf8_columns, with_utf8_as_text
from recsys.data.frames import NO_COLUMN, open_frame
from recsys.data.parts import UNREADABLE, SchemaGroup, open_parts
from recsys.data.source_files import find_files
from recsys.data.text_tables import NO_HEADER_HINT, ONE_COLUMN_HINT, TextTable, open_text
from recsys.data.text_types import integer_columns, typed, typed_part
from recsys.errors import InputError, did_you_mean, first_line

TableSource = str | os.PathLike[str] | IntoFrame
"""A file (.csv .tsv .txt .dat .inter .parquet .jsonl .ndjson, also .gz .zst .bz2), a folder of
parts, a pattern such as logs/*.parquet, or a frame (polars, pandas, Arrow, DuckDB)."""

Frame = Any
"""A data frame of the caller's library (polars, pandas, Arrow); polars if no frame was given."""


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table whose columns are known, and whose rows are read when asked for."""

    frame: nw.LazyFrame[Any]
    names: tuple[str, ...]
    """The names of the columns, those that cannot be read included."""
    origin: str
    """The name of the table in messages."""
    kind: str
    """The format of a file in messages; empty for a frame."""
    texts: tuple[TextTable, ...] = ()
    """The text files that the rows come from, if they do."""
    index: tuple[str, ...] = ()
    """The names of the index of a pandas frame, which are no columns."""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """The columns that some file does not have, with the first such file."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """The columns that cannot be read, which only matters if one is needed, with the reason."""
    groups: tuple[SchemaGroup, ...] = ()
    """The Parquet or JSON files that the rows come from, if they do."""

    def read(self, columns: Sequence[str] = (), rows: int | None = None) -> pl.DataFrame:
        """Read columns, all if none are given, of the first rows, all if None.

        A column of a text file has integers if every value is a plain integer, else text: one "007"
        makes it text. Typed sources keep their types, except that bytes become text if all of a
        column is UTF-8.

        Raises:
            InputError: a column is missing, or the table is broken.
        """
        chosen = self.frame.select(self.present(columns))
        chosen = chosen if rows is None else chosen.head(rows)
        with self._errors():
            table = chosen.collect("polars").to_polars()
        return typed(table) if self.texts else with_utf8_as_text(table)

    def warn_of_swallowed_rows(self) -> None:
        """Log a warning for every text file whose quotes seem to have swallowed rows."""
        for text in self.texts:
            text.warn_of_swallowed_rows()

    def count(self) -> int:
        """Return the number of rows, blank ones included.

        Raises:
            InputError: the table is broken.
        """
        with self._errors():
            return int(self.frame.select(nw.len()).collect("polars").item())

    def count_padded(self, column: str) -> int:
        """Return the number of values of a column of text with blanks around them.

        Raises:
            InputError: the table is broken.
        """
        text = nw.col(column)
        if self.frame.collect_schema()[column] != nw.String:
            return 0
        padded = self.frame.select(column).filter(text.str.strip_chars() != text)
        with self._errors():
            return int(padded.select(nw.len()).collect("polars").item())

    def parts(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """Yield what `read` returns in parts of so many rows, one in memory at a time.

        Raises:
            InputError: as `read`.
        """
        chosen = self.frame.select(self.present(columns))
        with self._errors():
            polars = chosen.implementation.is_polars()
            native = chosen.to_native() if polars else chosen.collect("polars").to_native()
            lazy: pl.LazyFrame = native.lazy()
            integer = integer_columns(lazy) if self.texts else []
            utf8 = utf8_columns(lazy, rows)
            for part in lazy.collect_batches(chunk_size=rows, maintain_order=True):
                yield typed_part(part, integer) if self.texts else with_utf8_as_text(part, utf8)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Make one line of what can go wrong when rows are read."""
        try:
            yield
        except InputError:
            raise
        except (*UNREADABLE, NarwhalsError, *NO_COLUMN) as error:
            for text in self.texts:
                _refuse_broken(text, error)
            kind = f" as {self.kind}" if self.kind else ""
            raise InputError(f"{self.origin}: cannot be read{kind}: {first_line(error)}") from error

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield all rows of a table of files, so many at a time, in order; text is not typed.

        Raises:
            InputError: the table is broken.
        """
        lazy = cast("pl.LazyFrame", self.frame.to_native())
        with self._errors():
            utf8 = utf8_columns(lazy, rows)
            for batch in lazy.collect_batches(chunk_size=rows, maintain_order=True):
                yield with_utf8_as_text(batch, utf8)

    def present(self, columns: Sequence[str]) -> list[str]:
        """Return the given columns, each once, or all that can be read if none are given.

        Raises:
            InputError: there is no such column, or a file does not have it, or it cannot be read.
        """
        columns = [name for name in columns if name in self.names or name != ROW_ORDER]
        if self.kind != "JSON lines":  # there, a field may be left out where it is null
            self.refuse_lacking(columns)
        for name in columns:
            if name not in self.names:
                hint = self.hint or did_you_mean(name, self.names)
                known = ", ".join(self.names)
                raise InputError(f"{self.origin}: no column {name!r} among {known}{hint}")
            if name in self.unreadable:
                raise InputError(f"{self.origin}: column {name!r}: {self.unreadable[name]}")
        readable = (name for name in self.names if name not in self.unreadable)
        return list(dict.fromkeys(columns or readable))

    def refuse_lacking(self, columns: Iterable[str]) -> None:
        """Refuse files that do not have a column which other files have.

        Raises:
            InputError: there is such a file.
        """
        for name in columns:
            if name in self.lacking:
                raise InputError(
                    f"{self.lacking[name]}: no column {name!r}, which other files of {self.origin} "
                    f"have: add it to the file, or leave the file out{self.hint}"
                )

    @property
    def sure_names(self) -> list[str]:
        """The names of the columns that every file has and that can be read."""
        return [n for n in self.names if n not in self.lacking and n not in self.unreadable]

    @property
    def hint(self) -> str:
        """What a message on a missing column adds: that the names may be elsewhere; else empty."""
        if any(text.header_looks_like_data for text in self.texts):
            return NO_HEADER_HINT
        if self.texts and len(self.names) == 1:
            return ONE_COLUMN_HINT
        names = ", ".join(repr(name) for name in self.index)
        return f"; {names} is the index: reset_index() makes it a column" if names else ""


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
    table.warn_of_swallowed_rows()
    return table.read(columns)


def open_table(
    source: TableSource,
    origin: str = "",
    *,
    header: bool = True,
    encoding: str | None = None,
    unpacked: Path | None = None,
) -> OpenTable:
    """Find the columns of a table.

    Args:
        source: a file, a folder, a pattern or a frame.
        origin: its name in messages; its path, or "the frame", if not given.
        header: whether the first line of a text file names the columns; if not, they are 1, 2, ….
        encoding: that of text files that are neither UTF-8 nor UTF-16.
        unpacked: the folder for the content of compressed files; if None, it is held in memory.

    Raises:
        InputError: there is no such file, or its format is unknown or broken.
    """
    if not isinstance(source, str | os.PathLike):
        return _open_frame(source, origin or "the frame")
    origin = origin or str(source)
    files = find_files(source)
    kind, given = files[0].kind, [str(file.path) for file in files]
    if len(files) == 1 and files[0].path.stat().st_size == 0:
        raise InputError(f"{origin}: the file is empty")
    try:
        if unpacked is not None:
            files = tuple(file.unpacked(unpacked / str(n)) for n, file in enumerate(files))
        names = [origin if len(files) == 1 else name for name in given]
        if kind in ("Parquet", "JSON lines"):
            parts = open_parts(files, names, hive=not Path(source).is_file())
            return OpenTable(
                nw.from_native(parts.scan()),
                (*parts.schema, *parts.unreadable),
                origin,
                kind,
                lacking=parts.lacking,
                unreadable=parts.unreadable,
                groups=parts.groups,
            )
        texts = [
            open_text(file, header, name, encoding) for file, name in zip(files, names, strict=True)
        ]
    except UNREADABLE as error:
        raise InputError(f"{origin}: cannot be read as {kind}: {first_line(error)}") from error
    return _joined_texts(texts, origin, kind)


def _joined_texts(texts: Sequence[TextTable], origin: str, kind: str) -> OpenTable:
    """Return text files as one table; a column that one of them lacks is null there."""
    alike = [list(files) for _, files in groupby(texts, key=lambda text: text.form)]
    every = tuple(dict.fromkeys(name for text, *_ in alike for name in text.columns))
    lacking = {
        name: text.origin
        for text, *_ in reversed(alike)  # so that the first one is named
        for name in {*every} - {*text.columns}
    }
    # One plan for thousands of files of one form is ten times as fast as a plan for each.
    rows = pl.concat([files[0].scan(*files[1:]) for files in alike], how="diagonal")
    return OpenTable(nw.from_native(rows), every, origin, kind, tuple(texts), lacking=lacking)


def _open_frame(frame: IntoFrame, origin: str) -> OpenTable:
    lazy, unreadable = open_frame(frame, origin)
    names = (*lazy.collect_schema().names(), *unreadable)
    index = getattr(getattr(frame, "index", None), "names", ())
    labels = tuple(str(name) for name in index if name is not None)
    return OpenTable(lazy, names, origin, "", index=labels, unreadable=unreadable)


def empty_like(table: object) -> Frame:
    """Return a frame without rows of the library of a frame; None for anything else."""
    frame = nw.from_native(table, pass_through=True)
    return frame.head(0).to_native() if isinstance(frame, nw.DataFrame) else None


def frame_like(
    answer: pl.DataFrame, *given: object, rows: tuple[object, Any] = (None, ())
) -> Frame:
    """Convert the answer to the kind of the first frame given; polars for lazy frames.

    A frame of pandas has the index of some ``rows`` of a table, if that is one of pandas too.
    """
    frames = (nw.from_native(source, pass_through=True, allow_series=True) for source in given)
    first = next(
        (f for f in frames if isinstance(f, nw.DataFrame | nw.LazyFrame | nw.Series)), None
    )
    if not isinstance(first, nw.DataFrame | nw.Series) or first.implementation.is_polars():
        return answer
    columns = {column.name: column.to_numpy() for column in answer}
    frame = nw.from_dict(columns, backend=first.implementation).to_native()
    table, numbers = rows
    table = nw.from_native(table, pass_through=True, allow_series=True)
    index = nw.maybe_get_index(table) if isinstance(table, nw.DataFrame | nw.Series) else None
    if index is not None and hasattr(frame, "index"):
        frame.index = index[numbers]
    return frame


def _refuse_broken(text: TextTable, error: BaseException) -> None:
    """Raise an `InputError` if this is the text file that cannot be read."""
    try:
        text.scan().select(pl.all().str.len_bytes().sum()).collect()
    except UNREADABLE as found:
        raise InputError(f"{text.origin}: cannot be read as CSV: {text.explain(found)}") from error
