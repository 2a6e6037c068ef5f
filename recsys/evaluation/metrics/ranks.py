"""Ranks to figures, averaged per user.

A *list* is one ranking of the catalogue: that of one user after one history. Where several targets
follow the same history, they stand in one list, and the figure is that of the list as a whole, by
the standard definitions for a set of relevant items. With one target per list every figure is a
function of its rank alone. A user may have several lists (a history that advances): the user's
figure is the mean over them, and every mean, interval and test is one over users. Targets of one
user are no independent observations: resampling them would give intervals that are too narrow.

Pure numpy: no data frames, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.errors import InputError
from recsys.evaluation.metrics.intervals import Interval, bootstrap_means
from recsys.inference.ranking import NEVER


def recall_at(ranks: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """1 where the target is among the k best, else 0 [Q].

    >>> recall_at(np.array([1, 2, 3]), k=2)
    array([1., 1., 0.])
    """
    return (ranks <= k).astype(np.float64)


def ndcg_at(ranks: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """1 / log2(1 + rank) where the target is among the k best, else 0 [Q].

    The ideal list has the one target first, which gains 1: nothing is left to divide by.

    >>> ndcg_at(np.array([1, 3, 4]), k=3)
    array([1. , 0.5, 0. ])
    """
    return np.where(ranks <= k, 1 / np.log2(1 + ranks), 0.0)


def metric_values(
    ranks: NDArray[np.int64], metric: str, lists: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """One metric of every list [N], lists ascending.

    Of a list with m targets:

    - ``recall_at_K``: targets among the K best / m;
    - ``hit_rate_at_K``: 1 if any target is among the K best;
    - ``precision_at_K``: targets among the K best / K;
    - ``ndcg_at_K``: the sum of 1 / log2(1 + rank) over the targets among the K best / the same sum
      over the first min(m, K) ranks (Järvelin and Kekäläinen 2002, with gain 1);
    - ``mrr``, ``mrr_at_K``: 1 / rank of the best target (if it is among the K best);
    - ``map_at_K``: the sum of j / rank over the targets among the K best, the j-th best target
      having j targets up to its rank, / m (as trec_eval's map_cut: by m, not by min(m, K)).

    Args:
        ranks: of the targets in their lists [Q], targets of one list being different items. Targets
            whose equal scores tie have the same rank, each behind the other.
        metric: its name.
        lists: which list each target stands in [Q]; None: each in one of its own.

    Raises:
        InputError: there is no such metric.

    >>> metric_values(np.array([2, 9, 1]), "recall_at_5", lists=np.array([7, 7, 8]))
    array([0.5, 1. ])
    """
    name = re.fullmatch(
        r"(?P<kind>recall|hit_rate|precision|ndcg|mrr|map)_at_(?P<k>[1-9]\d*)|mrr", metric
    )
    if name is None:
        raise InputError(
            f"metric {metric!r}: must be recall_at_K, hit_rate_at_K, precision_at_K, ndcg_at_K, "
            "map_at_K, mrr_at_K or mrr"
        )
    kind, k = name["kind"] or "mrr", min(int(name["k"] or NEVER), NEVER - 1)
    return _list_values(kind, k, ranks, np.arange(len(ranks)) if lists is None else lists)


def _list_values(
    kind: str, k: int, ranks: NDArray[np.int64], lists: NDArray[np.int64]
) -> NDArray[np.float64]:
    order = np.lexsort((ranks, lists))
    ranks = ranks[order]
    _, rows, sizes = np.unique(lists[order], return_inverse=True, return_counts=True)
    # Which of its list's targets, from the best on, each one is: j.
    place = np.arange(1, len(ranks) + 1) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    hit = ranks <= k
    gained: NDArray[np.float64]
    whole: NDArray[Any] | int = 1
    match kind:
        case "recall":
            gained, whole = hit.astype(np.float64), sizes
        case "hit_rate":
            gained = (hit & (place == 1)).astype(np.float64)
        case "precision":
            gained, whole = hit.astype(np.float64), k
        case "ndcg":
            ideal = np.cumsum(1 / np.log2(np.arange(2, 2 + min(k, sizes.max(initial=1)))))
            gained, whole = hit / np.log2(1 + ranks), ideal[np.minimum(sizes, k) - 1]
        case "map":
            gained, whole = hit * place / ranks, sizes
        case _:
            gained = (hit & (place == 1)) / ranks
    values: NDArray[np.float64] = np.bincount(rows, gained, len(sizes)) / whole
    return values


def metric_names(cutoffs: Sequence[int]) -> list[str]:
    """What is logged: recall_at_K and ndcg_at_K for each cut-off K, and mrr.

    >>> metric_names([5, 10])
    ['recall_at_5', 'recall_at_10', 'ndcg_at_5', 'ndcg_at_10', 'mrr']
    """
    return [f"{kind}_at_{k}" for kind in ("recall", "ndcg") for k in cutoffs] + ["mrr"]


def list_numbers(users: NDArray[np.int64], history_lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which list each target stands in [Q]: one number for each user and history.

    A user's histories are beginnings of one another, hence as different as their lengths.
    """
    return users * (int(history_lengths.max(initial=0)) + 1) + history_lengths


def user_means(values: NDArray[np.float64], users: NDArray[np.int64]) -> NDArray[np.float64]:
    """Means of the values [Q] of each user [U], users ascending.

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
    """One metric of every user [U], users ascending: the mean over the user's lists.

    Args:
        ranks: of the targets [Q].
        users: whose they are [Q].
        metric: a name that `metric_values` knows.
        lists: which list each target stands in [Q]; None: each in one of its own.

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
    """Metrics averaged over users: the mean over users of the mean over the lists of each.

    The intervals are percentile bootstraps over the users, from one set of resamples and a fixed
    seed: the same ranks always give the same figures.

    Args:
        ranks: of the targets [Q].
        users: whose they are [Q].
        metrics: names that `metric_values` knows, e.g. those of `metric_names`.
        lists: which list each target stands in [Q]; None: each in one of its own.

    Raises:
        InputError: there is no such metric.
        ValueError: there are no ranks.
    """
    _, counts = np.unique(users, return_counts=True)
    if len(counts) == len(ranks):  # one target each: users of one rank are alike, groups are few
        ranks, counts = np.unique(ranks, return_counts=True)
        users, lists = np.arange(len(ranks)), None
    else:  # hardly two users have the same ranks: each is a group
        counts = np.ones_like(counts)
    values = np.stack([user_values(ranks, users, name, lists) for name in metrics])
    intervals = bootstrap_means(values, counts, np.random.default_rng(0))
    return dict(zip(metrics, intervals, strict=True))
