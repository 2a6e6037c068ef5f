"""Metrics of lists of next purchases against the purchases that users made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories


class ListHits(NamedTuple):
    """The targets that the lists of Q users hold, n positions in each list."""

    hits: NDArray[np.bool_]
    """Shape [Q, n]: is there a target in this position, listed for the first time?"""
    in_order: NDArray[np.bool_]
    """Shape [Q, n]: does position i hold the i-th purchase?"""
    listed: NDArray[np.int64]
    """Shape [Q]: the number of items in the list."""
    distinct: NDArray[np.int64]
    """Shape [Q]: the number of distinct targets."""
    ordered: NDArray[np.int64]
    """Shape [Q]: the number of targets, at most n."""

    @classmethod
    def of(cls, lists: NDArray[np.int32], targets: Histories) -> ListHits:
        """Compare the lists [Q, n] with the targets of Q users."""
        n = lists.shape[1]
        # One number per user and item turns comparisons of sets into comparisons of numbers.
        width = max(lists.max(initial=PAD), targets.items.max(initial=PAD)) + np.int64(1)
        bought = np.unique(targets.users * width + targets.items)
        listed = np.arange(len(lists))[:, None] * width + lists
        first = np.zeros(lists.shape, dtype=np.bool_)
        first.flat[np.unique(listed, return_index=True)[1]] = True
        starts = targets.offsets[:-1]
        ordered = np.minimum(targets.lengths, n)
        due = Histories.from_spans(targets.items, starts, starts + ordered).padded(n)
        return cls(
            hits=first & np.isin(listed, bought),
            in_order=(lists == due) & (due != PAD),
            listed=(lists != PAD).sum(axis=1),
            distinct=np.bincount(bought // width, minlength=len(targets)),
            ordered=ordered,
        )

    def discount(self) -> NDArray[np.float64]:
        """Return 1 / log2(1 + position) [n]."""
        return 1 / np.log2(np.arange(2, self.hits.shape[1] + 2))

    def ideal(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sums of the discounts of the first positions [Q], ``counts`` [Q] of them."""
        sums = np.concatenate([[0.0], np.cumsum(self.discount())])
        ideal: NDArray[np.float64] = sums[np.minimum(counts, self.hits.shape[1])]
        return ideal


def _recall(found: ListHits) -> NDArray[np.float64]:
    values: NDArray[np.float64] = found.hits.sum(axis=1) / found.distinct
    return values


def _ndcg(found: ListHits) -> NDArray[np.float64]:
    values: NDArray[np.float64] = found.hits @ found.discount() / found.ideal(found.distinct)
    return values


def _f1(found: ListHits) -> NDArray[np.float64]:
    values: NDArray[np.float64] = 2 * found.hits.sum(axis=1) / (found.listed + found.distinct)
    return values


def _ordered_recall(found: ListHits) -> NDArray[np.float64]:
    values: NDArray[np.float64] = found.in_order.sum(axis=1) / found.ordered
    return values


def _ordered_ndcg(found: ListHits) -> NDArray[np.float64]:
    values: NDArray[np.float64] = found.in_order @ found.discount() / found.ideal(found.ordered)
    return values


NEXT_LIST_METRICS: Mapping[str, Callable[[ListHits], NDArray[np.float64]]] = {
    "next_recall": _recall,
    "next_ndcg": _ndcg,
    "next_f1": _f1,
    "next_ordered_recall": _ordered_recall,
    "next_ordered_ndcg": _ordered_ndcg,
}
"""The metrics of every list [Q], by name; see `next_list_metrics`."""


def next_list_metrics(
    lists: NDArray[np.int32], targets: Histories
) -> dict[str, NDArray[np.float64]]:
    """Return the metrics of one list of n items per user, each between 0 and 1, by name.

    As sets (an item listed again takes a position and gains nothing; targets in any order):

    - ``next_recall_at_n``: distinct targets in the list / distinct targets;
    - ``next_ndcg_at_n``: the sum of 1 / log2(1 + position) over listed targets / the same sum over
      the first positions, as many as there are distinct targets, at most n (Järvelin and
      Kekäläinen 2002, with gain 1);
    - ``next_f1_at_n``: 2 · distinct targets in the list / (items listed + distinct targets), the
      harmonic mean of recall and precision: the F1 of baskets.

    In order (position i against the i-th purchase; the rest of the longer one counts for nothing):

    - ``next_ordered_recall_at_n``: positions that hold their purchase / positions that could;
    - ``next_ordered_ndcg_at_n``: the same positions, each weighted by 1 / log2(1 + position).

    Args:
        lists: item tokens, best or first purchase first [Q, n]; PAD marks an empty position.
        targets: the purchases of Q users, oldest first, at least one item each.

    Returns:
        Five metrics [Q].

    Raises:
        ValueError: the numbers of lists and users differ, or a user has no targets.

    >>> bought = Histories.from_lists([[7, 5, 9]])
    >>> metrics = next_list_metrics(np.array([[5, 3, 9]]), bought)
    >>> {name: values.round(3).tolist() for name, values in metrics.items()}
    {'next_recall_at_3': [0.667], 'next_ndcg_at_3': [0.704], 'next_f1_at_3': [0.667],
     'next_ordered_recall_at_3': [0.333], 'next_ordered_ndcg_at_3': [0.235]}
    """
    if len(lists) != len(targets) or not targets.lengths.all():
        raise ValueError(f"{len(lists)} lists need as many users, each with at least one target")
    found = ListHits.of(lists, targets)
    n = lists.shape[1]
    return {f"{name}_at_{n}": metric(found) for name, metric in NEXT_LIST_METRICS.items()}
