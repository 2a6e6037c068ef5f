"""Lists against what was bought: how much of a user's next purchases a list foretells."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.data.holdout import NextPurchases
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.metrics.intervals import Interval, bootstrap_means
from recsys.evaluation.tables.parquet import load_table, save_table
from recsys.inference.ranking import Seen

_NOUN = "continuation table"
_SCHEMA = {"user": pl.Int64(), "generated": pl.List(pl.Int32), "targets": pl.List(pl.Int32)}


def list_figures(lists: NDArray[np.int32], targets: Histories) -> dict[str, NDArray[np.float64]]:
    """Figures of one list of n items per user, each between 0 and 1, by name.

    As sets (an item listed again takes a place and gains nothing; targets in any order):

    - ``next_recall_at_n``: distinct targets in the list / distinct targets;
    - ``next_ndcg_at_n``: the sum of 1 / log2(1 + place) over listed targets / the same sum over the
      first places, as many as there are distinct targets, at most n (Järvelin and Kekäläinen 2002,
      with gain 1);
    - ``next_f1_at_n``: 2 · distinct targets in the list / (items listed + distinct targets), the
      harmonic mean of recall and precision: the F1 of baskets.

    In order (place i against the i-th purchase; what is left of the longer one counts for nothing):

    - ``next_ordered_recall_at_n``: places that hold their purchase / places that could;
    - ``next_ordered_ndcg_at_n``: the same places, each weighted by 1 / log2(1 + place).

    Args:
        lists: item tokens, best or first purchase first [Q, n]; PAD: nothing in this place.
        targets: what Q users bought, oldest first, at least one item each.

    Returns:
        Five figures [Q].

    Raises:
        ValueError: not as many lists as users, or a user without targets.

    >>> bought = Histories.from_lists([[7, 5, 9]])
    >>> figures = list_figures(np.array([[5, 3, 9]]), bought)
    >>> {name: values.round(3).tolist() for name, values in figures.items()}
    {'next_recall_at_3': [0.667], 'next_ndcg_at_3': [0.704], 'next_f1_at_3': [0.667],
     'next_ordered_recall_at_3': [0.333], 'next_ordered_ndcg_at_3': [0.235]}
    """
    if len(lists) != len(targets) or not targets.lengths.all():
        raise ValueError(f"{len(lists)} lists need as many users, each with at least one target")
    n = lists.shape[1]
    discount = 1 / np.log2(np.arange(2, n + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discount)])

    # One number per user and item makes questions of sets questions of numbers.
    width = max(lists.max(initial=PAD), targets.items.max(initial=PAD)) + np.int64(1)
    bought = np.unique(targets.users * width + targets.items)
    distinct = np.bincount(bought // width, minlength=len(targets))
    listed = np.arange(len(lists))[:, None] * width + lists
    first = np.zeros(lists.shape, dtype=np.bool_)
    first.flat[np.unique(listed, return_index=True)[1]] = True
    hits = first & np.isin(listed, bought)

    starts = targets.offsets[:-1]
    counts = np.minimum(targets.lengths, n)
    due = Histories.from_spans(targets.items, starts, starts + counts).padded(n)
    in_order = (lists == due) & (due != PAD)

    figures = {
        "recall": hits.sum(axis=1) / distinct,
        "ndcg": hits @ discount / ideal[np.minimum(distinct, n)],
        "f1": 2 * hits.sum(axis=1) / ((lists != PAD).sum(axis=1) + distinct),
        "ordered_recall": in_order.sum(axis=1) / counts,
        "ordered_ndcg": in_order @ discount / ideal[counts],
    }
    return {f"next_{name}_at_{n}": values for name, values in figures.items()}


@dataclass(frozen=True, slots=True)
class NextListProtocol:
    """What must be equal for two continuation tables to be compared, beside users and targets."""

    part: Part
    """Which targets of the split."""
    num_items: int
    """Size of the catalogue that was listed from, I."""
    seen: Seen
    """Whether items of the user's history were left out of the lists."""
    length: int
    """Places in each list, n."""
    dropped: int
    """Targets left out because the catalogue does not hold them."""


@dataclass(frozen=True, slots=True)
class NextListTable:
    """One row per user: the list made for the user, and what the user bought."""

    frame: pl.DataFrame
    """user (row of the user in the dataset), generated (n item tokens, PAD: nothing in this place),
    targets (item tokens, oldest first, at least one)."""
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
        """The table of one list per user.

        Args:
            lists: item tokens [Q, n], PAD: nothing in this place.
            next_purchases: what the Q users bought.
            part: of the split, that it was bought in.
            num_items: size of the catalogue that was listed from.
            seen: whether items of the user's history were left out of the lists.
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

    def figures(self) -> dict[str, NDArray[np.float64]]:
        """Every figure of every user [Q], by name; see `list_figures`."""
        targets = self.frame["targets"]
        return list_figures(
            self.frame["generated"].list.to_array(self.protocol.length).to_numpy(),
            Histories(
                targets.explode().to_numpy(),
                np.concatenate([[0], targets.list.len().to_numpy().cumsum(dtype=np.int64)]),
            ),
        )

    def values(self, metric: str) -> NDArray[np.float64]:
        """One figure of every user [Q].

        Raises:
            InputError: there is no such figure.
        """
        figures = self.figures()
        if metric not in figures:
            raise InputError(f"metric {metric!r}: must be one of {', '.join(figures)}")
        return figures[metric]

    def summary(self) -> dict[str, Interval]:
        """Every figure averaged over the users, with percentile-bootstrap intervals over them.

        The seed is fixed: the same table always gives the same figures.

        Raises:
            ValueError: the table is empty.
        """
        figures = self.figures()
        values, counts = np.unique(np.stack([*figures.values()]), axis=1, return_counts=True)
        intervals = bootstrap_means(values, counts, np.random.default_rng(0))
        return dict(zip(figures, intervals, strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file, whole or not at all; see `save_table`."""
        save_table(path, _NOUN, self.frame, self.protocol)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NextListTable:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is no continuation table.
        """
        return cls(*load_table(path, _NOUN, _SCHEMA, NextListProtocol))
