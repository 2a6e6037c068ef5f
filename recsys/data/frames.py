"""Frames of other libraries as they come: names that are no text, columns that make no table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import narwhals as nw
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
from narwhals.dependencies import is_pandas_dataframe
from narwhals.exceptions import NarwhalsError

from recsys.data.bytes_columns import uuid_fields, uuid_text, with_uuids_as_text
from recsys.errors import InputError, first_line

NO_COLUMN = (TypeError, ValueError, OverflowError)
"""What Arrow raises for Python objects that make no column, such as integers of 65 bits."""

_ARROW_UUID = "extension<arrow.uuid>[pyarrow]"
_PLAIN_OBJECTS = ("string", "boolean", "empty", "date", "datetime")
"""What pandas calls columns of Python objects that Arrow reads without doubt."""


def open_frame(frame: Any, origin: str) -> tuple[nw.LazyFrame[Any], dict[str, str]]:
    """Return a frame whose columns can be read, and why others cannot.

    Raises:
        InputError: it is no frame, or names of columns are neither text nor integers, or the same.
    """
    unreadable: dict[str, str] = {}
    try:
        _refuse_same_names(frame, origin)
        if is_pandas_dataframe(frame):
            frame, unreadable = _plain_pandas(frame, origin)
        lazy = _without_zones(nw.from_native(_with_uuids_as_text(readable_again(frame))).lazy())
        lazy.collect_schema()
    except (pl.exceptions.PolarsError, NarwhalsError, *NO_COLUMN) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{origin}: cannot be read: {first_line(error)}") from error
    return lazy, unreadable


def readable_again(frame: Any) -> Any:
    """Convert Arrow datasets, and streams of Arrow data, which can be read once, to polars frames.

    Their UUIDs are text. Anything else is returned as it is.
    """
    arrow = sys.modules.get("pyarrow.dataset")  # who has a dataset has loaded it
    if arrow is not None and isinstance(frame, arrow.Dataset):
        return pl.scan_pyarrow_dataset(frame).with_columns(
            map(uuid_text, uuid_fields(frame.schema))
        )
    known = nw.from_native(frame, pass_through=True)
    if not isinstance(known, nw.DataFrame | nw.LazyFrame) and hasattr(frame, "__arrow_c_stream__"):
        stream = pa.RecordBatchReader.from_stream(frame)
        uuids = uuid_fields(stream.schema)
        return with_uuids_as_text(stream.read_all()) if uuids else pl.DataFrame(stream)
    return frame


def _refuse_same_names(frame: Any, origin: str) -> None:
    """Refuse two columns of one name, in the words that files are refused with.

    Raises:
        InputError: there are two.
    """
    names: Sequence[Any] = ()
    if isinstance(frame, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        names = frame.schema.names
    elif is_pandas_dataframe(frame):
        names = [str(name) for name in frame.columns]  # 1 and "1" would be the same
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{origin}: two columns are named {twice!r}")


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
    """Return a frame of polars or Arrow with text for columns of UUIDs, as databases have them."""
    if isinstance(frame, pa.Table):
        return with_uuids_as_text(frame)
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


def _without_zones(lazy: nw.LazyFrame[Any]) -> nw.LazyFrame[Any]:
    """Convert times of pandas with a zone to UTC, since Arrow's own conversion is deprecated."""
    types = lazy.collect_schema().items()
    zoned = [name for name, kind in types if isinstance(kind, nw.Datetime) and kind.time_zone]
    if not zoned or not lazy.implementation.is_pandas():
        return lazy
    return lazy.with_columns(
        nw.col(*zoned).dt.convert_time_zone("UTC").dt.replace_time_zone(None),
    )
