"""Answers written to files; those of a dataset some users at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from recsys.data.prepared import PreparedDataset
from recsys.folders.atomic import new_file
from recsys.progress import stage

_ROWS, _USERS = 1 << 20, 1 << 14
"""Rows of an answer, and users of a dataset, that are in the memory at once."""


def write_frames(frames: Iterable[pl.DataFrame], out: Path) -> int:
    """Write frames of the same columns to a Parquet or CSV file, atomically; return their rows."""
    rows = 0
    with new_file(out) as file, file.open("wb") as stream, ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for number, frame in enumerate(frames):
            rows += len(frame)
            if out.suffix == ".csv":
                frame.write_csv(stream, include_header=number == 0)
                continue
            table = frame.to_arrow()
            if writer is None:
                writer = pq.ParquetWriter(stream, table.schema, compression="zstd")
                stack.enter_context(writer)
            writer.write_table(table)
    return rows


def write_answers(
    dataset: PreparedDataset,
    users: Sequence[Any] | None,
    answer: Callable[..., pl.DataFrame],
    rows_per_user: int,
    out: Path,
) -> int:
    """Write the answers for users of a dataset, all if None, to a file; return their rows.

    The users are read some at a time. ``answer`` makes the rows of some users, so many for each of
    them at most.
    """
    known = dataset.user_ids if users is None else list(dict.fromkeys(users))
    size = min(_USERS, max(1, _ROWS // max(1, rows_per_user)))

    def frames() -> Iterator[pl.DataFrame]:
        with stage("recommending", total=max(1, ceil(len(known) / size))) as line:
            for start in range(0, max(1, len(known)), size):
                yield answer(users=known[start : start + size])
                line.advance()

    return write_frames(frames(), out)
