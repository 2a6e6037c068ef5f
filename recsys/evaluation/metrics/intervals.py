"""Means over users with percentile-bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1_000
"""Bootstrap resamples behind an interval."""

_DRAWS_AT_ONCE = 1 << 22
"""Bound on the counts that a bootstrap holds at once: 32 MiB."""


class Interval(NamedTuple):
    """A mean over users, and the 95% interval of it over samples of as many users."""

    mean: float
    low: float
    high: float


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
