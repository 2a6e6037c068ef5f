"""The histories of any number of users, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from recsys.config import Columns
from recsys.data.tables import OpenTable
from recsys.errors import InputError
from recsys.serving import user_ranges
from recsys.serving.answer_parts import AnswerParts
from recsys.serving.inputs import UserHistories
from recsys.serving.raw_log import open_raw_log
from recsys.serving.recommender import Recommender
from recsys.serving.user_ranges import ROW, Survey, divide, part_file, range_bounds, survey

_FOLDER, _NAME = "histories", "part"


class HistoryParts(Protocol):
    """Histories in parts that fit into the memory."""

    @property
    def count(self) -> int:
        """The number of parts, at least one."""
        ...

    def read(self, number: int) -> UserHistories:
        """Return a part.

        Raises:
            InputError: it cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class PartsOfDataset:
    """Users of the recommender's dataset, whose histories stay on the disk until they are read."""

    recommender: Recommender
    users: Sequence[Any] | pl.Series
    size: int
    """Users of a part."""

    @property
    def count(self) -> int:
        """See `HistoryParts`."""
        return max(1, ceil(len(self.users) / self.size))

    def read(self, number: int) -> UserHistories:
        """See `HistoryParts`."""
        chosen = self.users[number * self.size : (number + 1) * self.size]
        return self.recommender.read_histories(users=chosen)


@dataclass(frozen=True, slots=True)
class PartsOfLog:
    """Ranges of the users of a log, in ascending order."""

    recommender: Recommender
    log: Path
    folder: Path | None
    """The files of the ranges; None if the log is read as a whole."""
    bounds: pl.Series
    """The first users of all ranges but the first."""

    @property
    def count(self) -> int:
        """See `HistoryParts`."""
        return len(self.bounds) + 1

    def read(self, number: int) -> UserHistories:
        """See `HistoryParts`; messages name the log and the range."""
        if self.folder is None:
            return self.recommender.read_histories(self.log)
        file = part_file(self.folder, _NAME, number)
        try:
            return self.recommender.read_histories(file)
        except InputError as error:
            ends = self.bounds.to_list()
            first = f"from {ends[number - 1]!r} " if number else ""
            last = f"up to {ends[number]!r} " if number < len(ends) else ""
            place = f"{self.log}, among the rows of users {first}{last}".strip()
            raise InputError(str(error).replace(str(file), place)) from error


def parts_of_log(recommender: Recommender, log: Path, parts: AnswerParts) -> PartsOfLog:
    """Divide a log by its users, unless it is small; an earlier division is used again.

    Raises:
        InputError: the log cannot be read.
    """
    opened, user = open_histories(recommender, log)
    folder = parts.folder / _FOLDER
    if user is None:  # reading it says what is missing
        return PartsOfLog(recommender, log, None, pl.Series([], dtype=pl.String))
    if not folder.exists():
        found = survey(opened, user)
        bounds = range_bounds(found.users, ceil(found.rows / user_ranges.ROWS_PER_PART))
        if not len(bounds):
            return PartsOfLog(recommender, log, None, bounds)

        def make(new: Path) -> None:
            divide_log(opened, user, found, bounds, new)
            bounds.to_frame("bound").write_parquet(new / "bounds.parquet")

        parts.prepared(_FOLDER, make)
    bounds = pl.read_parquet(folder / "bounds.parquet")["bound"]
    return PartsOfLog(recommender, log, folder, bounds)


def divide_log(
    opened: OpenTable, user: str, found: Survey, bounds: pl.Series, folder: Path
) -> None:
    """Write the ranges of a log to the folder of a `PartsOfLog`: see `divide`."""
    divide(opened, user, found, bounds, folder, _NAME)


def open_histories(recommender: Recommender, log: Path) -> tuple[OpenTable, str | None]:
    """Open a log, and find the column of its users; None if it has none.

    Raises:
        InputError: it cannot be opened, or has a column of a name that the division needs.
    """
    data = recommender.bundle.experiment.data
    opened = open_raw_log(log, data, str(log))
    if ROW in opened.names:
        raise InputError(f"{log}: rename the column {ROW!r}: the name is needed here")
    names = (data.columns or Columns()).user_id, Columns().user_id
    return opened, next((name for name in names if name in opened.names), None)


def chunks(queries: UserHistories, size: int) -> Iterator[UserHistories]:
    """Yield the histories of so many users at a time; of none, if there are none."""
    for start in range(0, max(1, len(queries.user_ids)), size):
        users = slice(start, start + size)
        offsets = queries.histories.offsets[start : start + size + 1]
        yield UserHistories(
            queries.user_ids[users],
            queries.histories[users],
            queries.skipped[users],
            queries.positions[offsets[0] : offsets[-1]],
        )
