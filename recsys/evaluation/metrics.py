"""Ranks to figures, averaged per user.

Every target is ranked by itself, as the one relevant item, so the metric of a target is a function
of its rank alone. A user may have several targets: the user's figure is the mean over them, and
every mean, interval and test is one over users. Targets of one user are no independent
observations: resampling them would give intervals that are too narrow.

Pure numpy: no data frames, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.errors import InputError

RESAMPLES = 1_000
"""Bootstrap resamples behind an interval."""

_DRAWS_AT_ONCE = 1 << 22
"""Bound on the counts that a bootstrap holds at once: 32 MiB."""


class Interval(NamedTuple):
    """A mean over users, and the 95% interval of it over samples of as many users."""

    mean: float
    low: float
    high: float


def recall_at(ranks: NDArray[np.int64], k: int) -> NDArray[np.float64]:
    """1 where the target is among the k best, else 0 [Q] (with one target also called HR@k).

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


def reciprocal_rank(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 / rank [Q]; its mean is MRR, without a cut-off.

    >>> reciprocal_rank(np.array([1, 4]))
    array([1.  , 0.25])
    """
    return 1.0 / ranks


def metric_values(ranks: NDArray[np.int64], metric: str) -> NDArray[np.float64]:
    """Per-target values [Q] of a metric by its name: recall_at_K, ndcg_at_K or mrr.

    Raises:
        InputError: there is no such metric.
    """
    name = re.fullmatch(r"(?P<kind>recall|ndcg)_at_(?P<k>[1-9]\d*)|mrr", metric)
    if name is None:
        raise InputError(f"metric {metric!r}: must be recall_at_K, ndcg_at_K or mrr")
    if name["kind"] is None:
        return reciprocal_rank(ranks)
    return (recall_at if name["kind"] == "recall" else ndcg_at)(ranks, int(name["k"]))


def metric_names(cutoffs: Sequence[int]) -> list[str]:
    """recall_at_K and ndcg_at_K for each cut-off K, and mrr.

    >>> metric_names([5, 10])
    ['recall_at_5', 'recall_at_10', 'ndcg_at_5', 'ndcg_at_10', 'mrr']
    """
    return [f"{kind}_at_{k}" for kind in ("recall", "ndcg") for k in cutoffs] + ["mrr"]


def user_means(values: NDArray[np.float64], users: NDArray[np.int64]) -> NDArray[np.float64]:
    """Means of the values [Q] of each user [U], users ascending.

    >>> user_means(np.array([1.0, 0.0, 0.5]), users=np.array([7, 7, 9]))
    array([0.5, 0.5])
    """
    _, rows, counts = np.unique(users, return_inverse=True, return_counts=True)
    return np.bincount(rows, values, len(counts)) / counts


def summarise(
    ranks: NDArray[np.int64], users: NDArray[np.int64], metrics: Sequence[str]
) -> dict[str, Interval]:
    """Metrics averaged over users: the mean over users of the mean over the targets of each.

    The intervals are percentile bootstraps over the users, from one set of resamples and a fixed
    seed: the same ranks always give the same figures.

    Args:
        ranks: of the targets [Q].
        users: whose they are [Q].
        metrics: names that `metric_values` knows, e.g. those of `metric_names`.

    Raises:
        InputError: there is no such metric.
        ValueError: there are no ranks.
    """
    _, counts = np.unique(users, return_counts=True)
    if len(counts) == len(ranks):  # one target each: users of one rank are alike, groups are few
        ranks, counts = np.unique(ranks, return_counts=True)
        users = np.arange(len(ranks))
    else:  # hardly two users have the same ranks: each is a group
        counts = np.ones_like(counts)
    values = np.stack([user_means(metric_values(ranks, name), users) for name in metrics])
    intervals = bootstrap_means(values, counts, np.random.default_rng(0))
    return dict(zip(metrics, intervals, strict=True))


def bootstrap_means(
    values: NDArray[np.float64],
    counts: NDArray[np.int64],
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> list[Interval]:
    """Means with percentile-bootstrap 95% intervals, of observations grouped by value.

    Drawing n observations with replacement only changes how many fall into each group, and those
    numbers are multinomial: grouping makes 35,000 users as cheap as their distinct ranks.

    Args:
        values: of M metrics in each of G groups [M, G].
        counts: observations in each group [G], n in all.
        generator: of the resamples.
        resamples: how many.

    Returns:
        One interval per metric.

    Raises:
        ValueError: there are no observations.
    """
    total = int(counts.sum())
    if total == 0:
        raise ValueError("no targets: a mean of nothing has no value")
    means = np.concatenate(
        [
            generator.multinomial(total, counts / total, size=size) @ values.T / total
            for size in chunks(resamples, len(counts))
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    mean = values @ counts / total
    return [Interval(*map(float, row)) for row in zip(mean, low, high, strict=True)]


def chunks(rows: int, width: int) -> Iterator[int]:
    """Sizes that add up to ``rows``, such that ``size * width`` numbers fit in memory with ease."""
    size = max(1, _DRAWS_AT_ONCE // width)
    for start in range(0, rows, size):
        yield min(size, rows - start)
