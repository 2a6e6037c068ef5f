"""Ranks to figures. One relevant item per user, so every metric is a function of its rank alone.

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


def summarise(ranks: NDArray[np.int64], cutoffs: Sequence[int]) -> dict[str, Interval]:
    """recall_at_K and ndcg_at_K for each cut-off K, and mrr, averaged over the targets.

    The intervals are percentile bootstraps over the targets, from one set of resamples and a fixed
    seed: the same ranks always give the same figures.

    Raises:
        ValueError: there are no ranks.
    """
    distinct, counts = np.unique(ranks, return_counts=True)
    names = [f"{kind}_at_{k}" for kind in ("recall", "ndcg") for k in cutoffs] + ["mrr"]
    values = np.stack([metric_values(distinct, name) for name in names])
    return dict(zip(names, bootstrap_means(values, counts, np.random.default_rng(0)), strict=True))


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
