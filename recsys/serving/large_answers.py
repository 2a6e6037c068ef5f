"""Answers for any number of users, in bounded memory: from files or a dataset into a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import polars as pl

from recsys.progress import Stage, stage
from recsys.serving.answer_parts import AnswerParts, answer_parts
from recsys.serving.history_parts import HistoryParts, PartsOfDataset, chunks, parts_of_log
from recsys.serving.inputs import UserHistories
from recsys.serving.recommender import Recommender

logger = logging.getLogger(__name__)

_ANSWER_ROWS = 1 << 20
"""Rows of the answer that are in the memory at once."""
_MOST_USERS = 1 << 14
"""Users of a dataset in a part."""

Answer = Callable[[UserHistories], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class LargeAnswer:
    """Where the histories come from, and where the answer goes."""

    recommender: Recommender
    out: Path
    """The file: .parquet or .csv."""
    request: Mapping[str, Any]
    """All that the answer depends on: parts of an earlier run with the same request are kept."""
    histories: Path | None = None
    """A log; if None, users of the recommender's dataset."""
    users: Sequence[Any] | None = None
    """Ids of users of the dataset; all if None."""

    def by_user(self, title: str, answer: Answer, rows_per_user: int) -> int:
        """Write the answers for all users, in the order of `Recommender.read_histories`.

        Args:
            title: what is being done, in the view of the progress.
            answer: makes the rows of some users.
            rows_per_user: how many rows that are for each of them.

        Returns:
            The number of rows.

        Raises:
            InputError: see `answer_parts`, `Recommender.read_histories` and what answer raises.
        """
        most = max(1, _ANSWER_ROWS // max(1, rows_per_user))
        with answer_parts(self.out, self.request) as parts:
            source = self._source(parts, min(most, _MOST_USERS))
            left = [number for number in range(source.count) if not parts.done(number)]
            if len(left) < source.count:
                logger.info("%s: %d of %d parts are left", self.out, len(left), source.count)
            with stage(title, total=len(left)) as line:
                for number in left:
                    queries = source.read(number)
                    parts.write(number, _frames(queries, most, answer, line))
            return parts.join(source.count)

    def _source(self, parts: AnswerParts, size: int) -> HistoryParts:
        if self.histories is not None:
            with stage(f"reading {self.histories.name}"):
                return parts_of_log(self.recommender, self.histories, parts)
        users: Sequence[Any] | pl.Series = tuple(dict.fromkeys(self.users or ()))
        if self.users is None and self.recommender.dataset is not None:
            users = self.recommender.dataset.user_ids
        return PartsOfDataset(self.recommender, users, size)


def _frames(
    queries: UserHistories, most: int, answer: Answer, line: Stage
) -> Iterator[pl.DataFrame]:
    """Yield the answers for so many users at a time."""
    count = max(1, ceil(len(queries.user_ids) / most))
    for chunk in chunks(queries, most):
        yield answer(chunk)
        line.advance(1 / count)
