"""Recommendations for any number of users, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import polars as pl

from recsys.progress import stage
from recsys.serving.frame_writer import check_format, write_frames
from recsys.serving.histories import UserHistories
from recsys.serving.recommender import Recommender

_ROWS = 1 << 20
"""Rows of the answer that are in the memory at once."""
_USERS = 1 << 14
"""Users of a dataset whose histories are in the memory at once."""


def write_answers(
    recommender: Recommender,
    histories: Path | None,
    users: Sequence[Any] | None,
    answer: Callable[[UserHistories], pl.DataFrame],
    rows_per_user: int,
    out: Path,
) -> int:
    """Write the answers for all users to a file, in the order of `Recommender.read_histories`.

    A log of histories is read whole; those of a dataset stay on the disk until their users come.

    Args:
        recommender: the model, and the dataset of the users.
        histories: a log; if None, users of the dataset.
        users: ids of users of the dataset; all if None.
        answer: makes the rows of some users.
        rows_per_user: how many rows that are for each of them.
        out: the file, .parquet or .csv, which appears complete or not at all.

    Returns:
        The number of rows.

    Raises:
        InputError: the file has another extension or cannot be written; see
            `Recommender.read_histories` and what answer raises.
    """
    check_format(out)
    size = min(_USERS, max(1, _ROWS // max(1, rows_per_user)))
    dataset = recommender.dataset
    if histories is not None or dataset is None:
        queries = recommender.read_histories(histories, users)
        count, read = len(queries.user_ids), queries.__getitem__
    else:
        known = dataset.user_ids if users is None else list(dict.fromkeys(users))
        count = len(known)

        def read(chosen: slice) -> UserHistories:
            return recommender.read_histories(users=known[chosen])

    def frames() -> Iterator[pl.DataFrame]:
        with stage("recommending", total=max(1, ceil(count / size))) as line:
            for start in range(0, max(1, count), size):
                yield answer(read(slice(start, start + size)))
                line.advance()

    return write_frames(frames(), out)
