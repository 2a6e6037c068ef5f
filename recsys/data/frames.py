"""Frames of other libraries: Arrow data on the way in, the caller's library on the way out."""

import sys
from typing import Any

import narwhals as nw
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
from narwhals.dependencies import is_pandas_dataframe
from narwhals.exceptions import NarwhalsError

from recsys.data.database import check_names
from recsys.errors import InputError, first_line

Frame = Any
"""A data frame of the caller's library (polars, pandas, Arrow); polars if no frame was given."""

_NO_COLUMN = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for Python objects that make no column, such as integers of 65 bits."""


def open_frame(frame: Any, origin: str) -> pa.Table:
    """Return a frame as Arrow data; anything else is an `InputError`.

    Values are exact: a column of Python objects that Arrow refuses, such as 71053 beside 85123A
    or 2**60 + 1 beside 1.5, becomes text.
    """
    try:
        if is_pandas_dataframe(frame):
            return _of_pandas(frame, origin)
        known = nw.from_native(readable_again(frame))
        if isinstance(known, nw.LazyFrame):
            known = known.collect("polars" if known.implementation.is_polars() else "pyarrow")
        if known.implementation.is_polars():
            native = known.to_native()
            objects = [column for column in native if column.dtype == pl.Object]
            texts = [pl.Series(column.name, map(_as_text, column), pl.String) for column in objects]
            known = nw.from_native(native.with_columns(texts))
        return known.to_arrow()
    except (pl.exceptions.PolarsError, NarwhalsError, *_NO_COLUMN) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{origin}: cannot be read: {first_line(error)}") from error


def _of_pandas(frame: Any, origin: str) -> pa.Table:
    """Return a frame of pandas as Arrow data; names become text."""
    names = [str(name) for name in frame.columns]  # 1 and "1" would be the same
    check_names(names, origin)
    frame = frame.set_axis(names, axis=1)
    # Arrow's own conversion of zones is deprecated.
    changed = {
        name: frame[name].dt.tz_convert(None) for name in frame.select_dtypes("datetimetz").columns
    }
    for name in [name for name, kind in frame.dtypes.items() if str(kind) == "object"]:
        try:
            pa.Array.from_pandas(frame[name])
        except _NO_COLUMN:
            changed[name] = frame[name].map(_as_text, na_action="ignore")
    return pa.Table.from_pandas(frame.assign(**changed), preserve_index=False)


def readable_again(frame: Any) -> Any:
    """Read streams of Arrow data and Arrow datasets, which can be read once, into Arrow tables."""
    arrow = sys.modules.get("pyarrow._dataset")  # who has a dataset has loaded it
    if arrow is not None and isinstance(frame, arrow.Dataset):
        return frame.to_table()
    known = nw.from_native(frame, pass_through=True)
    if not isinstance(known, nw.DataFrame | nw.LazyFrame) and hasattr(frame, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(frame).read_all()
    return frame


def _as_text(value: object) -> str | None:
    """Return a value as text; 12.0 is 12, which pandas makes of it beside missing values."""
    if value is None:
        return None
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


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
    columns = {
        column.name: column.to_list() if column.dtype.is_nested() else column.to_numpy()
        for column in answer
    }
    frame = nw.from_dict(columns, backend=first.implementation).to_native()
    table, numbers = rows
    table = nw.from_native(table, pass_through=True, allow_series=True)
    index = nw.maybe_get_index(table) if isinstance(table, nw.DataFrame | nw.Series) else None
    if index is not None and hasattr(frame, "index"):
        frame.index = index[numbers]
    return frame
