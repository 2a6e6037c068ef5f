"""The rank of every evaluated target: all that comparing models needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.holdout import Holdout
from recsys.data.prepared import Part
from recsys.evaluation.candidates import CATALOGUE, Candidates
from recsys.evaluation.metrics.ranks import Interval, list_numbers, summarise, user_values
from recsys.evaluation.tables.parquet import load_table, save_table
from recsys.inference.ranking import Seen, Ties, rank_targets
from recsys.inference.scorer import Scorer

_NOUN = "rank table"
_SCHEMA = {"user": pl.Int64, "target": pl.Int32, "rank": pl.Int64, "history_length": pl.Int32}


@dataclass(frozen=True, slots=True)
class Protocol:
    """What must be equal for two rank tables to be compared, beside users and targets."""

    part: Part
    """Which targets of the split."""
    num_items: int
    """Size of the catalogue that was ranked, I."""
    seen: Seen
    """Whether items of the user's history were left out of the ranking."""
    ties: Ties
    """How equal scores were ordered."""
    dropped: int
    """Targets left out because the catalogue does not hold them."""
    candidates: str = CATALOGUE
    """What the targets were ranked among; see `recsys.evaluation.candidates`."""
    without_history: int = 0
    """Targets left out because nothing is known before them."""


@dataclass(frozen=True, slots=True)
class RankTable:
    """One row per evaluated target, in the order of the holdout, and how the ranks were taken."""

    frame: pl.DataFrame
    """user (row of the user in the dataset), target (item token), rank (1 = best; `NEVER` if it
    cannot be recommended), history_length (items before the target), then any segment columns
    and, of pooled folds, fold."""
    protocol: Protocol

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The ranks [Q], as `recsys.evaluation.metrics.ranks` takes them."""
        ranks: NDArray[np.int64] = self.frame["rank"].to_numpy()
        return ranks

    @property
    def users(self) -> NDArray[np.int64]:
        """Whose the targets are [Q]; the targets of a user need not stand together."""
        users: NDArray[np.int64] = self.frame["user"].to_numpy()
        return users

    def values(self, metric: str) -> NDArray[np.float64]:
        """One metric of every user [U], users ascending: the mean over the user's lists.

        Raises:
            InputError: there is no such metric.
        """
        ranks, users, lists = self._listed()
        return user_values(ranks, users, metric, lists)

    def summary(self, metrics: Sequence[str]) -> dict[str, Interval]:
        """Metrics averaged over the users, with intervals over them; see `summarise`."""
        ranks, users, lists = self._listed()
        return summarise(ranks, users, metrics, lists)

    def _listed(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Rank, user and list of every target; what a list is asked for twice counts once."""
        frame = self.frame
        # Pooled folds number their items, and a user's histories, each on its own.
        fold = ["fold"] if "fold" in frame.columns else []
        if frame["user"].is_duplicated().any():
            columns = ["user", "history_length", "target", *fold]
            frame = frame.unique(columns, keep="first", maintain_order=True)
        users = frame["user"].to_numpy()
        lists = list_numbers(users, frame["history_length"].to_numpy())
        if fold:
            lists = list_numbers(lists, frame["fold"].to_numpy())
        return frame["rank"].to_numpy(), users, lists

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file, whole or not at all; see `save_table`."""
        save_table(path, _NOUN, self.frame, self.protocol)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RankTable:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is no rank table.
        """
        return cls(*load_table(path, _NOUN, _SCHEMA, Protocol))


def evaluate(
    scorer: Scorer,
    holdout: Holdout,
    part: Part,
    seen: Seen,
    ties: Ties = "against_target",
    candidates: Candidates | None = None,
) -> RankTable:
    """Rank every target of a holdout, over the whole catalogue or among its candidates.

    See `rank_targets`, and `recsys.evaluation.candidates` for how to come by candidates.
    """
    sets = None if candidates is None else candidates.sets
    histories, rows = holdout.histories, holdout.history_rows
    ranks = rank_targets(scorer, histories, holdout.targets, seen, ties, sets, rows)
    return rank_table(ranks, holdout, part, scorer.num_items, seen, ties, candidates)


def rank_table(
    ranks: NDArray[np.int64],
    holdout: Holdout,
    part: Part,
    num_items: int,
    seen: Seen,
    ties: Ties = "against_target",
    candidates: Candidates | None = None,
) -> RankTable:
    """The table of the ranks [Q] of the targets of a holdout, taken as the other arguments say."""
    frame = pl.DataFrame(
        {
            "user": holdout.users,
            "target": holdout.targets,
            "rank": ranks,
            "history_length": holdout.histories.lengths[holdout.history_rows],
        },
        schema=_SCHEMA,
    )
    name = CATALOGUE if candidates is None else candidates.name
    dropped, without = holdout.dropped, holdout.without_history
    return RankTable(frame, Protocol(part, num_items, seen, ties, dropped, name, without))
