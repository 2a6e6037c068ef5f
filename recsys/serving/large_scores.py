"""Scores of any number of pairs of a user and an item, in bounded memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import polars as pl

from recsys.config import Columns
from recsys.data.histories import PAD
from recsys.data.tables import OpenTable, open_table
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError
from recsys.progress import stage
from recsys.serving import user_ranges
from recsys.serving.answer_parts import AnswerParts, answer_parts
from recsys.serving.candidates import RawCandidates
from recsys.serving.history_parts import PartsOfLog, divide_log, open_histories
from recsys.serving.inputs import UserHistories
from recsys.serving.large_answers import LargeAnswer
from recsys.serving.time_scale import RequestTime
from recsys.serving.user_ranges import ROW, divide, part_file, range_bounds, survey, user_ids

logger = logging.getLogger(__name__)

_FOLDER, _CANDIDATES = "candidates", "candidates"


@dataclass(frozen=True, slots=True)
class LargeScores:
    """Candidates of any number of users, and where their scores go."""

    large: LargeAnswer
    at: RequestTime | None = None
    """The request time."""
    strict: bool = False
    """Whether an unknown candidate is refused, not left out."""
    probabilities: bool = False
    """Whether the calibrated probability of each item is added."""

    def of_items(self, items: list[Any]) -> int:
        """Score the same items for all users, one user after the other: see `LargeAnswer.by_user`.

        Returns:
            The number of rows.
        """
        score = partial(
            self.large.recommender.score,
            candidates=items,
            at=self.at,
            strict=self.strict,
            probabilities=self.probabilities,
        )
        return self.large.by_user("scoring", score, len(items))

    def of_table(self, candidates: Path) -> int:
        """Score a table of candidates: of user_id and item_id, in its order, or of item_id alone.

        Returns:
            The number of rows.

        Raises:
            InputError: see `answer_parts` and `Recommender.score`.
        """
        columns = self._columns
        opened = open_table(candidates)
        opened.warn_of_swallowed_rows()
        users = next((name for name in (columns.user_id, "user_id") if name in opened.names), None)
        if users is None:
            return self.of_items(RawCandidates.read(candidates, columns).items.to_list())
        if ROW in opened.names:
            raise InputError(f"{candidates}: rename the column {ROW!r}: the name is needed here")
        with answer_parts(self.large.out, self.large.request) as parts:
            with stage(f"reading {candidates.name}"):
                histories, bounds = self._divided(parts, opened, users)
            left = [number for number in range(len(bounds) + 1) if not parts.done(number)]
            with stage("scoring", total=len(left)) as line:
                for number in left:
                    file = part_file(parts.folder / _FOLDER, _CANDIDATES, number)
                    try:
                        scored = self._scored(pl.read_parquet(file), histories, number)
                    except InputError as error:
                        place = str(error).replace("candidates:", f"{candidates}:", 1)
                        raise InputError(place) from error
                    parts.write(number, [scored])
                    line.advance()
            return parts.join(len(bounds) + 1)

    @property
    def _columns(self) -> Columns:
        return self.large.recommender.bundle.experiment.data.columns or Columns()

    def _divided(
        self, parts: AnswerParts, candidates: OpenTable, user: str
    ) -> tuple[PartsOfLog | None, pl.Series]:
        """Divide the candidates, and the log of histories if there is one, by the same users."""
        recommender, log = self.large.recommender, self.large.histories
        folder = parts.folder / _FOLDER
        if not folder.exists():
            found = survey(candidates, user)
            sample, rows = found.users, found.rows
            if log is not None:
                opened, log_user = open_histories(recommender, log)
                if log_user is None:
                    recommender.read_histories(log)  # raises
                other = survey(opened, log_user or "")
                kind = other.users.dtype if other.users.dtype == sample.dtype else pl.String()
                sample = pl.concat([user_ids(one, kind) for one in (sample, other.users)])
                rows += other.rows
            bounds = range_bounds(sample, ceil(rows / user_ranges.ROWS_PER_PART))

            def make(new: Path) -> None:
                divide(candidates, user, found, bounds, new, _CANDIDATES)
                if log is not None:
                    divide_log(opened, log_user or "", other, bounds, new)
                bounds.to_frame("bound").write_parquet(new / "bounds.parquet")

            parts.prepared(_FOLDER, make)
        bounds = pl.read_parquet(folder / "bounds.parquet")["bound"]
        return None if log is None else PartsOfLog(recommender, log, folder, bounds), bounds

    def _scored(
        self, table: pl.DataFrame, histories: PartsOfLog | None, number: int
    ) -> pl.DataFrame:
        """Return the scores of the known candidates of a part, and the numbers of their rows."""
        recommender = self.large.recommender
        raw = RawCandidates.read(table.drop(ROW), self._columns)
        assert raw.users is not None  # noqa: S101 - the table has such a column
        if histories is not None:
            queries = histories.read(number)
            users = queries.user_ids
        elif self.large.users is not None:
            users = pl.Series(self.large.users)
        else:
            assert recommender.dataset is not None  # noqa: S101 - `write_answer` checked it
            users = recommender.dataset.user_ids
        known_users = Vocabulary(users).encode(raw.users) != PAD
        known = known_users & (recommender.bundle.vocabulary.encode(raw.items) != PAD)
        if self.strict or known.all():
            chosen = table
        else:
            chosen = table.filter(pl.Series(known))
            logger.warning(
                "%d of %d candidates are left out: their item is not in the catalogue, or their "
                "user is not among the histories",
                *(len(table) - len(chosen), len(table)),
            )
        if histories is None:
            queries = self._of_dataset(raw.users.filter(pl.Series(known_users)))
        scored = recommender.score(
            queries,
            chosen.drop(ROW),
            at=self.at,
            strict=self.strict,
            probabilities=self.probabilities,
        )
        return pl.DataFrame(scored).with_columns(chosen[ROW])

    def _of_dataset(self, users: pl.Series) -> UserHistories:
        return self.large.recommender.read_histories(users=users.unique(maintain_order=True))
