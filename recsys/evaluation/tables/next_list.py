"""The list made for every user, with the purchases that the user made next."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import Histories
from recsys.data.holdout import NextPurchases
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.metrics.intervals import Interval, bootstrap_means
from recsys.evaluation.metrics.lists import next_list_metrics
from recsys.evaluation.tables.parquet import load_table, save_table
from recsys.inference.scorer import Seen

_NOUN = "next-list table"
_SCHEMA = {"user": pl.Int64(), "generated": pl.List(pl.Int32), "targets": pl.List(pl.Int32)}


@dataclass(frozen=True, slots=True)
class NextListProtocol:
    """The facts that two tables of lists must share to be compared, besides users and targets."""

    part: Part
    """The part of the split."""
    num_items: int
    """The size of the catalogue that the lists were made from, I."""
    seen: Seen
    """Whether items of the user's history were excluded from the lists."""
    length: int
    """The number of positions in each list, n."""
    dropped: int
    """The number of targets outside the catalogue, which are not in the table."""


@dataclass(frozen=True, slots=True)
class NextListTable:
    """One row per user: the list made for the user, and the purchases that the user made."""

    frame: pl.DataFrame
    """The columns user (row of the user in the dataset), generated (n item tokens, PAD for an empty
    position) and targets (item tokens, oldest first, at least one)."""
    protocol: NextListProtocol

    @classmethod
    def of(
        cls,
        lists: NDArray[np.int32],
        next_purchases: NextPurchases,
        part: Part,
        num_items: int,
        seen: Seen,
    ) -> NextListTable:
        """Make the table from one list per user.

        Args:
            lists: item tokens [Q, n]; PAD marks an empty position.
            next_purchases: the purchases of the Q users.
            part: the part of the split that they were made in.
            num_items: the size of the catalogue that the lists were made from.
            seen: whether items of the user's history were excluded from the lists.
        """
        targets = next_purchases.targets
        rows = pl.DataFrame({"row": targets.users, "item": targets.items})
        frame = pl.DataFrame(
            {
                "user": next_purchases.users,
                "generated": pl.Series(lists),
                "targets": rows.group_by("row", maintain_order=True).agg("item")["item"],
            },
            schema=_SCHEMA,
        )
        protocol = NextListProtocol(part, num_items, seen, lists.shape[1], next_purchases.dropped)
        return cls(frame, protocol)

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Return every metric of every user [Q], by name; see `next_list_metrics`."""
        targets = self.frame["targets"]
        return next_list_metrics(
            self.frame["generated"].list.to_array(self.protocol.length).to_numpy(),
            Histories(
                targets.explode().to_numpy(),
                np.concatenate([[0], targets.list.len().to_numpy().cumsum(dtype=np.int64)]),
            ),
        )

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return one metric of every user [Q].

        Raises:
            InputError: there is no such metric.
        """
        metrics = self.metrics()
        if metric not in metrics:
            raise InputError(f"metric {metric!r}: must be one of {', '.join(metrics)}")
        return metrics[metric]

    def summary(self) -> dict[str, Interval]:
        """Average every metric over the users, with percentile-bootstrap intervals over them.

        The seed is fixed: the same table always gives the same intervals.

        Raises:
            ValueError: the table is empty.
        """
        metrics = self.metrics()
        values, counts = np.unique(np.stack([*metrics.values()]), axis=1, return_counts=True)
        intervals = bootstrap_means(values, counts, np.random.default_rng(0))
        return dict(zip(metrics, intervals, strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file atomically; see `save_table`."""
        save_table(path, _NOUN, self.frame, self.protocol)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NextListTable:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is not a next-list table.
        """
        return cls(*load_table(path, _NOUN, _SCHEMA, NextListProtocol))
