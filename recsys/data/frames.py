"""Frames of other libraries: Arrow data on the way in, the caller's library on the way out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import narwhals as nw
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
from narwhals.dependencies import is_pandas_dataframe
from narwhals.exceptions import NarwhalsError

from recsys.data.database import same_names
from recsys.errors import InputError, first_line

Frame = Any
"""A data frame of the caller's library (polars, pandas, Arrow); polars if no frame was given."""

NO_COLUMN = (TypeError, ValueError, OverflowError)
"""What Arrow raises for Python objects that make no column, such as integers of 65 bits."""

_ARROW_UUID = "extension<arrow.uuid>[pyarrow]"
_PLAIN_OBJECTS = ("string", "boolean", "empty", "date", "datetime")
"""What pandas calls columns of Python objects that Arrow reads without doubt."""


def open_frame(frame: Any, origin: str) -> tuple[pa.Table, dict[str, str], tuple[str, ...]]:
    """Return a frame as Arrow data, why some columns cannot be read, and the names of its index.

    Values are exact: a column of Python objects in which 2**60 + 1 stands beside 1.5 is refused.

    Raises:
        InputError: it is no frame, or names of columns are neither text nor integers, or the same.
    """
    unreadable: dict[str, str] = {}
    index = getattr(getattr(frame, "index", None), "names", ())
    try:
        if (twice := same_names(_names(frame))) is not None:
            raise InputError(f"{origin}: two columns are named {twice}")
        if is_pandas_dataframe(frame):
            frame, unreadable = _plain_pandas(frame, origin)
        table = _as_arrow(_with_uuids_as_text(readable_again(frame)), unreadable)
    except (pl.exceptions.PolarsError, pa.ArrowException, NarwhalsError, *NO_COLUMN) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{origin}: cannot be read: {first_line(error)}") from error
    return table, unreadable, tuple(str(label) for label in index if label is not None)


def _as_arrow(frame: Any, unreadable: dict[str, str]) -> pa.Table:
    """Return a frame as Arrow data, without columns of Python objects and of floats of 16 bits."""
    if is_pandas_dataframe(frame):
        # Arrow's own conversion of zones is deprecated.
        zoned = frame.select_dtypes("datetimetz").columns
        plain = {name: frame[name].dt.tz_convert(None) for name in zoned}
        return pa.Table.from_pandas(frame.assign(**plain), preserve_index=False)
    known = nw.from_native(frame)
    if isinstance(known, nw.LazyFrame):
        known = known.collect("polars" if known.implementation.is_polars() else "pyarrow")
    if known.implementation.is_polars():
        native = known.to_native()
        objects = [name for name, kind in native.schema.items() if kind == pl.Object]
        unreadable |= dict.fromkeys(objects, "has Python objects: text makes a column of them")
        short = [name for name, kind in native.schema.items() if str(kind) == "Float16"]
        unreadable |= dict.fromkeys(short, "has 16-bit floats: 64-bit ones tell integers apart")
        large = [name for name, kind in native.schema.items() if str(kind).endswith("Int128")]
        whole = [native[name].cast(pl.Int64, strict=False) for name in large]
        too_large = [c.name for c in whole if c.null_count() > native[c.name].null_count()]
        unreadable |= dict.fromkeys(too_large, "has integers of more than 64 bits")
        native = native.with_columns(whole)
        known = nw.from_native(native.drop(list(unreadable), strict=False))
    return known.to_arrow()


def readable_again(frame: Any) -> Any:
    """Read streams of Arrow data and Arrow datasets, which can be read once, into Arrow tables.

    Anything else is returned as it is.
    """
    arrow = sys.modules.get("pyarrow._dataset")  # who has a dataset has loaded it
    if arrow is not None and isinstance(frame, arrow.Dataset):
        return frame.to_table()
    known = nw.from_native(frame, pass_through=True)
    if not isinstance(known, nw.DataFrame | nw.LazyFrame) and hasattr(frame, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(frame).read_all()
    return frame


def _names(frame: Any) -> list[str]:
    if isinstance(frame, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return list(frame.schema.names)
    # Of pandas, 1 and "1" would be the same.
    return [str(name) for name in frame.columns] if is_pandas_dataframe(frame) else []


def _plain_pandas(frame: Any, origin: str) -> tuple[Any, dict[str, str]]:
    """Return a frame of pandas without the columns that Arrow refuses, and why it refuses them.

    Integers among the names become text. So do columns that mix text with integers, as in a text
    file: stock codes such as 71053 and 85123A are read so from a spreadsheet. So do UUIDs.

    Raises:
        InputError: a name is neither text nor an integer.
    """
    if (levels := frame.columns.nlevels) > 1:
        raise InputError(f"{origin}: names of columns must be text, not of {levels} levels")
    types = sys.modules["pandas"].api.types  # who has a frame has loaded it
    for name in frame.columns:
        if not (isinstance(name, str) or types.is_integer(name)):
            raise InputError(f"{origin}: names of columns must be text or integers, not {name!r}")
    if not all(isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    kinds = {name: str(dtype) for name, dtype in frame.dtypes.items()}
    uuids = [name for name, kind in kinds.items() if kind == _ARROW_UUID]
    texts = {name: _texts(pa.array(frame[name]).to_pylist()) for name in uuids}
    unreadable = {}
    for name in [name for name, kind in kinds.items() if kind == "object"]:
        kind = types.infer_dtype(frame[name], skipna=True)
        if kind == "mixed-integer" or (kind == "mixed" and _are_uuids(frame[name].dropna())):
            texts[name] = frame[name].map(_as_text, na_action="ignore")
        elif kind not in _PLAIN_OBJECTS:
            try:
                pa.Array.from_pandas(frame[name])
            except (pa.ArrowException, *NO_COLUMN) as error:
                how = "text makes a column of them, with .astype(str)"
                unreadable[name] = f"has values of no common type ({first_line(error)}): {how}"
    frame = frame.assign(**texts) if texts else frame
    return frame.drop(columns=list(unreadable)) if unreadable else frame, unreadable


def _with_uuids_as_text(frame: Any) -> Any:
    """Return a frame of polars with text for columns of UUIDs, as databases have them."""
    if not isinstance(frame, pl.DataFrame):
        return frame
    objects = [column for column in frame if column.dtype == pl.Object]
    uuids = [column for column in objects if _are_uuids(column.drop_nulls())]
    texts = [pl.Series(column.name, _texts(column)) for column in uuids]
    return frame.with_columns(texts) if texts else frame


def _as_text(value: object) -> str:
    """Return a value as text; 12.0 is 12, which pandas makes of it beside missing values."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _texts(values: Iterable[object]) -> list[str | None]:
    return [None if value is None else str(value) for value in values]


def _are_uuids(values: Any) -> bool:
    return len(values) > 0 and all(isinstance(value, UUID) for value in values)


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


# --- CSV files ------------------------------------------------------------------------------------

FOR_SPREADSHEETS = ContextVar("FOR_SPREADSHEETS", default=False)
"""Whether CSV files are written for spreadsheets: see `for_spreadsheets`."""


def write_csv(frame: pl.DataFrame, file: Path | IO[bytes], *, header: bool = True) -> None:
    """Write a frame as CSV."""
    frame = for_spreadsheets(frame) if FOR_SPREADSHEETS.get() else frame
    frame.write_csv(file, include_header=header)


def for_spreadsheets(frame: pl.DataFrame) -> pl.DataFrame:
    """Put an apostrophe before each text that a spreadsheet would run as a formula.

    The texts begin with ``= + - @``, a tab or a line's end. Source: OWASP, CSV injection.

    >>> for_spreadsheets(pl.DataFrame({"item_id": ["=1+1", "hat"]}))["item_id"].to_list()
    ["'=1+1", 'hat']
    """
    texts = pl.col(pl.String)
    formula = texts.str.contains(r"^[=+\-@\t\r\n]")
    return frame.with_columns(pl.when(formula).then("'" + texts).otherwise(texts).name.keep())
