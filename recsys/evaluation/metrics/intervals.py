"""Means over users with percentile-bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1_000
"""The number of bootstrap resamples of an interval."""

_DRAWS_AT_ONCE = 1 << 22
"""The largest number of counts that a bootstrap holds in memory: 32 MiB."""


class Interval(NamedTuple):
    """A mean over users with its 95% interval over samples of as many users."""

    mean: float
    low: float
    high: float


def bootstrap_means(
    values: NDArray[np.float64],
    counts: NDArray[np.int64],
    generator: np.random.Generator,
    resamples: int = RESAMPLES,
) -> list[Interval]:
    """Return means with percentile-bootstrap 95% intervals, of observations grouped by value.

    Drawing n observations with replacement only changes how many fall into each group, and those
    numbers are multinomial: with groups, 35,000 users cost as much as their distinct ranks.

    Args:
        values: M metrics in each of G groups [M, G].
        counts: the observations in each group [G], n in total.
        generator: the source of the resamples.
        resamples: the number of resamples.

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
    """Yield sizes that add up to ``rows``, such that ``size * width`` numbers fit in memory."""
    size = max(1, _DRAWS_AT_ONCE // width)
    for start in range(0, rows, size):
        yield min(size, rows - start)
