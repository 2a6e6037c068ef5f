"""Tables from files and frames, with one-line errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import narwhals as nw
import polars as pl
from narwhals.dependencies import is_pandas_dataframe
from narwhals.exceptions import NarwhalsError
from narwhals.typing import IntoFrame

from recsys.data.source_files import SourceFile, find_files
from recsys.data.text_tables import (
    NO_HEADER_HINT,
    ONE_COLUMN_HINT,
    TextTable,
    integer_columns,
    open_text,
    typed,
    typed_part,
)
from recsys.errors import InputError, did_you_mean

TableSource = str | os.PathLike[str] | IntoFrame
"""A file (.csv .tsv .txt .dat .parquet .jsonl .ndjson, also .gz .zst .bz2), a folder of parts, a
pattern such as logs/*.parquet, or a frame (polars, pandas, Arrow, DuckDB)."""

Frame = Any
"""A data frame of the caller's library (polars, pandas, Arrow); polars if no frame was given."""

# A damaged Parquet page can make polars panic instead of raising.
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
_NO_COLUMN = (TypeError, ValueError, OverflowError)
"""What Arrow raises for Python objects that make no column, such as integers of 65 bits."""


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table whose columns are known, and whose rows are read when asked for."""

    frame: nw.LazyFrame[Any]
    names: tuple[str, ...]
    """The names of the columns."""
    origin: str
    """The name of the table in messages."""
    kind: str
    """The format of a file in messages; empty for a frame."""
    texts: tuple[TextTable, ...] = ()
    """The text files that the rows come from, if they do."""
    index: tuple[str, ...] = ()
    """The names of the index of a pandas frame, which are no columns."""

    def read(self, columns: Sequence[str] = (), rows: int | None = None) -> pl.DataFrame:
        """Read columns, all if none are given, of the first rows, all if None.

        A column of a text file has integers if every value is a plain integer, else text: one "007"
        makes it text. Typed sources keep their types.

        Raises:
            InputError: a column is missing, or the table is broken.
        """
        chosen = self.frame.select(self.present(columns))
        chosen = chosen if rows is None else chosen.head(rows)
        with self._errors():
            table = chosen.collect("polars").to_polars()
        return typed(table) if self.texts else table

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
            for part in lazy.collect_batches(chunk_size=rows, maintain_order=True):
                yield typed_part(part, integer) if self.texts else part

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Make one line of what can go wrong when rows are read."""
        try:
            yield
        except InputError:
            raise
        except (*_UNREADABLE, NarwhalsError, *_NO_COLUMN) as error:
            for text in self.texts:
                _refuse_broken(text, error)
            kind = f" as {self.kind}" if self.kind else ""
            raise InputError(
                f"{self.origin}: cannot be read{kind}: {_first_line(error)}"
            ) from error

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield all rows of a table of files, so many at a time, in order; text is not typed.

        Raises:
            InputError: the table is broken.
        """
        lazy = cast("pl.LazyFrame", self.frame.to_native())
        with self._errors():
            yield from lazy.collect_batches(chunk_size=rows, maintain_order=True)

    def present(self, columns: Sequence[str]) -> list[str]:
        """Return the given columns, each once, or all if none are given.

        Raises:
            InputError: there is no such column.
        """
        for name in columns:
            if name not in self.names:
                hint = self.hint or did_you_mean(name, self.names)
                known = ", ".join(self.names)
                raise InputError(f"{self.origin}: no column {name!r} among {known}{hint}")
        return list(dict.fromkeys(columns) or self.names)

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
        if kind in ("Parquet", "JSON lines"):
            lazy = _scan(files, hive=not Path(source).is_file())
            return OpenTable(nw.from_native(lazy), tuple(lazy.collect_schema()), origin, kind)
        names = [origin if len(files) == 1 else name for name in given]
        texts = [
            open_text(file, header, name, encoding) for file, name in zip(files, names, strict=True)
        ]
    except _UNREADABLE as error:
        raise InputError(f"{origin}: cannot be read as {kind}: {_first_line(error)}") from error
    for text in texts:
        if set(text.names) != set(texts[0].names):
            raise InputError(
                f"{text.origin}: has the columns {', '.join(text.names)}, but "
                f"{texts[0].origin} has {', '.join(texts[0].names)}"
            )
    rows = pl.concat([text.scan().select(texts[0].names) for text in texts])
    return OpenTable(nw.from_native(rows), texts[0].names, origin, kind, tuple(texts))


def empty_like(table: object) -> Frame:
    """Return a frame without rows of the library of a frame; None for anything else."""
    frame = nw.from_native(table, pass_through=True)
    return frame.head(0).to_native() if isinstance(frame, nw.DataFrame) else None


def frame_like(answer: pl.DataFrame, *given: object) -> Frame:
    """Convert the answer to the kind of the first frame given; polars for lazy frames."""
    frames = (nw.from_native(source, pass_through=True) for source in given)
    first = next((f for f in frames if isinstance(f, nw.DataFrame | nw.LazyFrame)), None)
    if not isinstance(first, nw.DataFrame) or first.implementation.is_polars():
        return answer
    columns = {column.name: column.to_numpy() for column in answer}
    return nw.from_dict(columns, backend=first.implementation).to_native()


def _scan(files: Sequence[SourceFile], hive: bool) -> pl.LazyFrame:
    """Scan Parquet or JSON lines; if hive, the day of folders day=2024-01-05 is a column."""
    sources = [file.path if file.compression is None else BytesIO(file.content()) for file in files]
    if files[0].kind == "JSON lines":
        return pl.scan_ndjson(sources, infer_schema_length=None)  # type: ignore[arg-type]
    return pl.scan_parquet(sources, glob=False, hive_partitioning=hive)  # type: ignore[arg-type]


def _open_frame(frame: IntoFrame, origin: str) -> OpenTable:
    if is_pandas_dataframe(frame) and (levels := frame.columns.nlevels) > 1:
        raise InputError(f"{origin}: names of columns must be text, not of {levels} levels")
    try:
        lazy = _without_zones(nw.from_native(_without_mixtures(readable_again(frame))).lazy())
        names: list[Any] = lazy.collect_schema().names()  # pandas allows any object
    except (pl.exceptions.PolarsError, NarwhalsError, *_NO_COLUMN) as error:
        raise InputError(f"{origin}: cannot be read: {_first_line(error)}") from error
    if unnamed := [name for name in names if not isinstance(name, str)]:
        raise InputError(f"{origin}: names of columns must be text, not {unnamed[0]!r}")
    index = getattr(getattr(frame, "index", None), "names", ())
    labels = tuple(str(name) for name in index if name is not None)
    return OpenTable(lazy, tuple(names), origin, "", index=labels)


def _without_mixtures(frame: Any) -> Any:
    """Make text of columns of pandas that mix it with numbers, as in a text file.

    Arrow refuses them. Stock codes such as 71053 and 85123A are read so from a spreadsheet.
    """
    if not is_pandas_dataframe(frame) or not frame.columns.is_unique:
        return frame
    kind_of = sys.modules["pandas"].api.types.infer_dtype  # who has a frame has loaded it
    mixed = [
        name
        for name, dtype in frame.dtypes.items()
        if str(dtype) == "object" and isinstance(name, str)
        if kind_of(frame[name], skipna=True) == "mixed-integer"
    ]
    texts = {name: frame[name].map(_as_text, na_action="ignore") for name in mixed}
    return frame.assign(**texts) if texts else frame


def _as_text(value: object) -> str:
    """Return a value as text; 12.0 is 12, which pandas makes of it beside missing values."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _without_zones(lazy: nw.LazyFrame[Any]) -> nw.LazyFrame[Any]:
    """Convert times of pandas with a zone to UTC, since Arrow's own conversion is deprecated."""
    types = lazy.collect_schema().items()
    zoned = [name for name, kind in types if isinstance(kind, nw.Datetime) and kind.time_zone]
    if not zoned or not lazy.implementation.is_pandas():
        return lazy
    return lazy.with_columns(
        nw.col(*zoned).dt.convert_time_zone("UTC").dt.replace_time_zone(None),
    )


def readable_again(frame: Any) -> Any:
    """Convert Arrow datasets, and streams of Arrow data, which can be read once, to polars frames.

    Anything else is returned as it is.
    """
    arrow = sys.modules.get("pyarrow.dataset")  # who has a dataset has loaded it
    if arrow is not None and isinstance(frame, arrow.Dataset):
        return pl.scan_pyarrow_dataset(frame)
    known = nw.from_native(frame, pass_through=True)
    if not isinstance(known, nw.DataFrame | nw.LazyFrame) and hasattr(frame, "__arrow_c_stream__"):
        return pl.DataFrame(frame)
    return frame


def _refuse_broken(text: TextTable, error: BaseException) -> None:
    """Raise an `InputError` if this is the text file that cannot be read."""
    try:
        text.scan().select(pl.all().str.len_bytes().sum()).collect()
    except _UNREADABLE as found:
        raise InputError(f"{text.origin}: cannot be read as CSV: {text.explain(found)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
