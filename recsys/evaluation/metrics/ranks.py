"""Metrics of ranks, averaged per user.

A *list* is one ranking of the catalogue for one user after one history. If several targets follow
the same history, they are in one list, and the metric is that of the list as a whole, by the
standard definitions for a set of relevant items. With one target per list every metric is a
function of its rank. A user may have several lists (a history that advances): the user's value is
the mean over them, and every mean, interval and test is one over users. The targets of one user are
not independent observations: resampling them would give intervals that are too narrow.

Pure numpy: no data frames, no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.errors import InputError
from recsys.evaluation.metrics.intervals import Interval, bootstrap_means
from recsys.evaluation.metrics.names import split_name, usage
from recsys.inference.ranking import NEVER


def recall_at(ranks: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return 1 where the target is among the k best, else 0 [Q]; each target is a list of its own.

    >>> recall_at(np.array([1, 2, 3]), k=2)
    array([1., 1., 0.])
    """
    return (ranks <= k).astype(np.float64)


def ndcg_at(ranks: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """Return 1 / log2(1 + rank) where the target is among the k best, else 0 [Q].

    Each target is a list of its own. The ideal list has the target first, which gains 1, so there
    is nothing to divide by.

    >>> ndcg_at(np.array([1, 3, 4]), k=3)
    array([1. , 0.5, 0. ])
    """
    return np.where(ranks <= k, 1 / np.log2(1 + ranks), 0.0)


class RankedLists(NamedTuple):
    """Q targets in N lists, the targets of each list ordered from the best rank on."""

    ranks: NDArray[np.int64]
    """Shape [Q]: the rank of each target."""
    rows: NDArray[np.int64]
    """Shape [Q]: the list that each target is in, ascending."""
    positions: NDArray[np.int64]
    """Shape [Q]: the position of each target among those of its list, j, from 1."""
    sizes: NDArray[np.int64]
    """Shape [N]: the number of targets in each list, m."""

    @classmethod
    def of(cls, ranks: NDArray[np.int64], lists: NDArray[np.int64]) -> RankedLists:
        """Order the targets; both arrays have the shape [Q]."""
        order = np.lexsort((ranks, lists))
        _, rows, sizes = np.unique(lists[order], return_inverse=True, return_counts=True)
        positions = np.arange(1, len(ranks) + 1) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return cls(ranks[order], rows, positions, sizes)

    def hits(self, k: int) -> NDArray[np.bool_]:
        """Return which targets are among the K best [Q]."""
        return self.ranks <= k

    def sums(self, gains: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up the gains [Q] of each list [N]."""
        return np.bincount(self.rows, gains, len(self.sizes)).astype(np.float64, copy=False)


def _recall(lists: RankedLists, k: int) -> NDArray[np.float64]:
    return lists.sums(lists.hits(k).astype(np.float64)) / lists.sizes


def _hit_rate(lists: RankedLists, k: int) -> NDArray[np.float64]:
    return lists.sums((lists.hits(k) & (lists.positions == 1)).astype(np.float64))


def _precision(lists: RankedLists, k: int) -> NDArray[np.float64]:
    return lists.sums(lists.hits(k).astype(np.float64)) / k


def _ndcg(lists: RankedLists, k: int) -> NDArray[np.float64]:
    ideal = np.cumsum(1 / np.log2(np.arange(2, 2 + min(k, lists.sizes.max(initial=1)))))
    gains = lists.sums(lists.hits(k) / np.log2(1 + lists.ranks))
    values: NDArray[np.float64] = gains / ideal[np.minimum(lists.sizes, k) - 1]
    return values


def _map(lists: RankedLists, k: int) -> NDArray[np.float64]:
    return lists.sums(lists.hits(k) * lists.positions / lists.ranks) / lists.sizes


def _mrr(lists: RankedLists, k: int) -> NDArray[np.float64]:
    return lists.sums((lists.hits(k) & (lists.positions == 1)) / lists.ranks)


RANK_METRICS: Mapping[str, Callable[[RankedLists, int], NDArray[np.float64]]] = {
    "recall": _recall,
    "hit_rate": _hit_rate,
    "precision": _precision,
    "ndcg": _ndcg,
    "map": _map,
    "mrr": _mrr,
}
"""The metrics of every list [N] with their cut-off k, by name; see `metric_values`."""


def metric_values(
    ranks: NDArray[np.int64], metric: str, lists: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Return one metric of every list [N], lists ascending.

    For a list with m targets:

    - ``recall_at_K``: targets among the K best / m;
    - ``hit_rate_at_K``: 1 if any target is among the K best;
    - ``precision_at_K``: targets among the K best / K;
    - ``ndcg_at_K``: the sum of 1 / log2(1 + rank) over the targets among the K best / the same sum
      over the first min(m, K) ranks (Järvelin and Kekäläinen 2002, with gain 1);
    - ``mrr``, ``mrr_at_K``: 1 / rank of the best target (if it is among the K best);
    - ``map_at_K``: the sum of j / rank over the targets among the K best, the j-th best target
      having j targets up to its rank, / m (as trec_eval's map_cut: by m, not by min(m, K)).

    Args:
        ranks: the ranks of the targets in their lists [Q]; the targets of one list are different
            items. Targets whose equal scores tie have the same rank, each behind the other.
        metric: the name of the metric.
        lists: the list of each target [Q]. If None, each target is a list of its own.

    Raises:
        InputError: there is no such metric.

    >>> metric_values(np.array([2, 9, 1]), "recall_at_5", lists=np.array([7, 7, 8]))
    array([0.5, 1. ])
    """
    kind, k = split_name(metric)
    if kind not in RANK_METRICS or (k is None and kind != "mrr"):
        raise InputError(f"metric {metric!r}: must be {usage(RANK_METRICS)}")
    if lists is None:
        lists = np.arange(len(ranks))
    return RANK_METRICS[kind](RankedLists.of(ranks, lists), min(k or NEVER, NEVER - 1))


def metric_names(cutoffs: Sequence[int]) -> list[str]:
    """Return the metrics that are logged: recall and NDCG for each cut-off, and MRR.

    >>> metric_names([5, 10])
    ['recall_at_5', 'recall_at_10', 'ndcg_at_5', 'ndcg_at_10', 'mrr']
    """
    return [f"{kind}_at_{k}" for kind in ("recall", "ndcg") for k in cutoffs] + ["mrr"]


def list_numbers(users: NDArray[np.int64], history_lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the list of each target [Q]: one number for each user and history.

    A user's histories are prefixes of one another, so they differ exactly if their lengths do.
    """
    return users * (int(history_lengths.max(initial=0)) + 1) + history_lengths


def user_means(values: NDArray[np.float64], users: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of each user's values [U], users ascending, from values [Q].

    >>> user_means(np.array([1.0, 0.0, 0.5]), users=np.array([7, 7, 9]))
    array([0.5, 0.5])
    """
    _, rows, counts = np.unique(users, return_inverse=True, return_counts=True)
    return np.bincount(rows, values, len(counts)) / counts


def user_values(
    ranks: NDArray[np.int64],
    users: NDArray[np.int64],
    metric: str,
    lists: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Return one metric of every user [U], users ascending: the mean over the user's lists.

    Args:
        ranks: the ranks of the targets [Q].
        users: the user of each target [Q].
        metric: a name that `metric_values` knows.
        lists: the list of each target [Q]. If None, each target is a list of its own.

    Raises:
        InputError: there is no such metric.
    """
    if lists is None:
        lists = np.arange(len(ranks))
    _, first = np.unique(lists, return_index=True)
    return user_means(metric_values(ranks, metric, lists), users[first])


def summarise(
    ranks: NDArray[np.int64],
    users: NDArray[np.int64],
    metrics: Sequence[str],
    lists: NDArray[np.int64] | None = None,
) -> dict[str, Interval]:
    """Average metrics over users: the mean over users of the mean over the lists of each.

    The intervals are percentile bootstraps over the users, from one set of resamples and a fixed
    seed: the same ranks always give the same intervals.

    Args:
        ranks: the ranks of the targets [Q].
        users: the user of each target [Q].
        metrics: names that `metric_values` knows, e.g. those of `metric_names`.
        lists: the list of each target [Q]. If None, each target is a list of its own.

    Raises:
        InputError: there is no such metric.
        ValueError: there are no ranks.
    """
    _, counts = np.unique(users, return_counts=True)
    if len(counts) == len(ranks):  # one target per user: users of equal rank form one group
        ranks, counts = np.unique(ranks, return_counts=True)
        users, lists = np.arange(len(ranks)), None
    else:  # hardly two users have the same ranks: each is a group
        counts = np.ones_like(counts)
    values = np.stack([user_values(ranks, users, name, lists) for name in metrics])
    intervals = bootstrap_means(values, counts, np.random.default_rng(0))
    return dict(zip(metrics, intervals, strict=True))
