"""Write a table frame by frame, so that it never is in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from recsys.data.csv_cells import write_csv
from recsys.errors import InputError
from recsys.folders.atomic import new_file

FORMATS = (".parquet", ".csv")


def check_format(out: Path) -> None:
    """Refuse a file of an unknown format.

    Raises:
        InputError: its extension is unknown.
    """
    if out.suffix not in FORMATS:
        given = out.suffix or "no extension"
        raise InputError(f"{out}: can write {' and '.join(FORMATS)}, not {given}")


def write_frames(frames: Iterable[pl.DataFrame], out: Path) -> int:
    """Write frames of the same columns to a Parquet or CSV file, atomically.

    Args:
        frames: at least one.
        out: the file.

    Returns:
        The number of rows.

    Raises:
        InputError: the file has another extension, or cannot be written.
    """
    check_format(out)
    with new_file(out) as file:
        return _write_parquet(frames, file) if out.suffix == ".parquet" else _csv(frames, file)


def _write_parquet(frames: Iterable[pl.DataFrame], file: Path) -> int:
    rows = 0
    writer: pq.ParquetWriter | None = None
    try:
        for frame in frames:
            table = frame.to_arrow()
            if writer is None:
                writer = pq.ParquetWriter(file, table.schema, compression="zstd")
            writer.write_table(table)
            rows += len(frame)
    finally:
        if writer is not None:
            writer.close()
    return rows


def _csv(frames: Iterable[pl.DataFrame], file: Path) -> int:
    rows = 0
    with file.open("wb") as stream:
        for number, frame in enumerate(frames):
            write_csv(frame, stream, header=number == 0)
            rows += len(frame)
    return rows
