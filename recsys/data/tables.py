"""Tables from files and frames, with one-line errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl
from narwhals.exceptions import NarwhalsError
from narwhals.typing import IntoFrame

from recsys.errors import InputError, did_you_mean

TableSource = str | os.PathLike[str] | IntoFrame
"""A file (.csv .tsv .parquet .jsonl .ndjson) or a frame (polars, pandas, Arrow)."""

_KINDS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".parquet": "Parquet",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
}
_DELIMITERS = {"CSV": ",", "TSV": "\t"}
_INTEGER = r"^(?:0|-?[1-9][0-9]{0,17})$"


def read_table(source: TableSource, columns: Sequence[str] = (), origin: str = "") -> pl.DataFrame:
    """Read the given columns of a table, or all of them if none are given.

    A column of a text file has integers if every value is a plain integer, else text: one "007"
    makes it text. Typed sources keep their types.

    Raises:
        InputError: no such file, an unknown extension, a broken file, a missing column, or a
            duplicate column name.
    """
    if not isinstance(source, str | os.PathLike):
        return _read_frame(source, columns, origin or "the frame")
    path = Path(source)
    origin = origin or str(source)
    kind = _KINDS.get(path.suffix.lower())
    if not path.is_file():
        raise InputError(f"{origin}: no such file")
    if kind is None:
        raise InputError(f"{origin}: unknown extension {path.suffix!r}, not {', '.join(_KINDS)}")
    if path.stat().st_size == 0:
        raise InputError(f"{origin}: the file is empty")
    try:
        if kind in _DELIMITERS:
            return _read_text(path, _DELIMITERS[kind], columns, origin)
        if kind == "Parquet":
            lazy = pl.scan_parquet(path, glob=False)
        else:
            lazy = pl.scan_ndjson(path, infer_schema_length=None)
        return lazy.select(_present(columns, lazy.collect_schema().names(), origin)).collect()
    # A damaged Parquet page can make polars panic instead of raising.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise InputError(f"{origin}: cannot be read as {kind}: {_first_line(error)}") from error


def frame_like(answer: pl.DataFrame, *given: object) -> Any:
    """Convert the answer to the kind of the first frame given; polars for lazy frames."""
    frames = (nw.from_native(source, pass_through=True) for source in given)
    first = next((f for f in frames if isinstance(f, nw.DataFrame | nw.LazyFrame)), None)
    if not isinstance(first, nw.DataFrame) or first.implementation.is_polars():
        return answer
    columns = {column.name: column.to_numpy() for column in answer}
    return nw.from_dict(columns, backend=first.implementation).to_native()


def _read_frame(frame: IntoFrame, columns: Sequence[str], origin: str) -> pl.DataFrame:
    try:
        lazy = nw.from_native(frame).lazy()
        names = _present(columns, lazy.collect_schema().names(), origin)
        return lazy.select(names).collect("polars").to_polars()
    except InputError:
        raise
    except (pl.exceptions.PolarsError, NarwhalsError, TypeError, ValueError) as error:
        raise InputError(f"{origin}: cannot be read: {_first_line(error)}") from error


def _read_text(path: Path, delimiter: str, columns: Sequence[str], origin: str) -> pl.DataFrame:
    top = pl.read_csv(path, separator=delimiter, has_header=False, n_rows=1, infer_schema=False)
    header = [name or "" for name in top.row(0)]
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise InputError(f"{origin}: two columns are named {twice!r}")
    names = _present(columns, header, origin)
    table = pl.read_csv(path, separator=delimiter, infer_schema=False, columns=names)
    integer = table.select(pl.all().str.contains(_INTEGER).all() & pl.all().is_not_null().any())
    return table.with_columns(pl.col(name).cast(pl.Int64) for name in names if integer[name].item())


def _present(columns: Sequence[str], known: list[str], origin: str) -> list[str]:
    """Return the given columns, each once, or all known ones if none are given."""
    for name in columns:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"{origin}: no column {name!r} among {', '.join(known)}{hint}")
    return list(dict.fromkeys(columns)) or known


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
