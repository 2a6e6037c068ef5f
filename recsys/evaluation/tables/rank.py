"""The rank of every evaluated target: comparing the accuracy of models needs nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.holdout import Holdout
from recsys.data.prepared import Part
from recsys.evaluation.candidates import CATALOGUE, Candidates
from recsys.evaluation.metrics.intervals import Interval
from recsys.evaluation.metrics.ranks import list_numbers, summarise, user_values
from recsys.evaluation.tables.parquet import load_table, save_table
from recsys.inference.ranking import Ties, rank_targets
from recsys.inference.scorer import Scorer, Seen

_NOUN = "rank table"
_SCHEMA = {"user": pl.Int64, "target": pl.Int32, "rank": pl.Int64, "history_length": pl.Int32}


@dataclass(frozen=True, slots=True)
class RankProtocol:
    """The facts that two rank tables must share to be compared, besides users and targets."""

    part: Part
    """The part of the split."""
    num_items: int
    """The size of the catalogue that was ranked, I."""
    seen: Seen
    """Whether items of the user's history were excluded from the ranking."""
    ties: Ties
    """The order of equal scores."""
    dropped: int
    """The number of targets outside the catalogue, which are not in the table."""
    candidates: str = CATALOGUE
    """The items that targets were ranked among; see `recsys.evaluation.candidates`."""
    without_history: int = 0
    """The number of targets without a history, which are not in the table."""


@dataclass(frozen=True, slots=True)
class RankTable:
    """One row per evaluated target, in the order of the holdout, and the protocol of the ranks."""

    frame: pl.DataFrame
    """The columns user (row of the user in the dataset), target (item token), rank (1 = best;
    `NEVER` if it cannot be recommended), history_length (items before the target), any segment
    columns and, for pooled folds, fold."""
    protocol: RankProtocol

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The ranks [Q], as `recsys.evaluation.metrics.ranks` takes them."""
        ranks: NDArray[np.int64] = self.frame["rank"].to_numpy()
        return ranks

    @property
    def users(self) -> NDArray[np.int64]:
        """The user of each target [Q]; the targets of a user need not be adjacent."""
        users: NDArray[np.int64] = self.frame["user"].to_numpy()
        return users

    @property
    def segments(self) -> list[str]:
        """The names of the columns that targets can be grouped by."""
        return [name for name in self.frame.columns if name not in ("user", "target", "rank")]

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return one metric of every user [U], users ascending: the mean over the user's lists.

        Raises:
            InputError: there is no such metric.
        """
        ranks, users, lists = self._listed()
        return user_values(ranks, users, metric, lists)

    def summary(self, metrics: Sequence[str]) -> dict[str, Interval]:
        """Average metrics over the users, with intervals over them; see `summarise`."""
        ranks, users, lists = self._listed()
        return summarise(ranks, users, metrics, lists)

    def _listed(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return rank, user and list of every target; a target repeated in a list counts once."""
        frame = self.frame
        # Each pooled fold has its own numbers of items and its own histories.
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
        """Write one Parquet file atomically; see `save_table`."""
        save_table(path, _NOUN, self.frame, self.protocol)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RankTable:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is not a rank table.
        """
        return cls(*load_table(path, _NOUN, _SCHEMA, RankProtocol))


def evaluate(
    scorer: Scorer,
    holdout: Holdout,
    part: Part,
    seen: Seen,
    ties: Ties = "against_target",
    candidates: Candidates | None = None,
) -> RankTable:
    """Rank every target of a holdout, over the full catalogue or among its candidates.

    See `rank_targets`, and `recsys.evaluation.candidates` for choosing candidates.
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
    """Make the table of the ranks [Q] of the targets of a holdout; the rest is the protocol."""
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
    return RankTable(frame, RankProtocol(part, num_items, seen, ties, dropped, name, without))


def pool_folds(tables: Sequence[RankTable], user_ids: Sequence[pl.Series]) -> RankTable:
    """Put the targets of several folds of one log into one table, so that a user counts once.

    Args:
        tables: the tables of one model under one protocol, one per fold.
        user_ids: the ids of the users of each fold's dataset, in the order of its rows.

    Returns:
        A table whose users are renumbered in the order of their ids. Target tokens remain those of
        their own datasets. Its protocol has the largest catalogue and all dropped targets.
    """
    ids = pl.concat(
        [ids.gather(table.frame["user"]) for table, ids in zip(tables, user_ids, strict=True)]
    )
    frame = pl.concat(
        [table.frame.with_columns(fold=pl.lit(fold)) for fold, table in enumerate(tables, 1)]
    )
    renumbered = frame.with_columns(user=ids.rank("dense").cast(pl.Int64) - 1)
    protocols = [table.protocol for table in tables]
    protocol = replace(
        protocols[0],
        num_items=max(protocol.num_items for protocol in protocols),
        dropped=sum(protocol.dropped for protocol in protocols),
        without_history=sum(protocol.without_history for protocol in protocols),
    )
    return RankTable(renumbered, protocol)
