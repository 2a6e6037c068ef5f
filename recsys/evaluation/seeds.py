"""Runs that differ in their seed alone, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.errors import InputError
from recsys.evaluation.metrics import Interval, bootstrap_means
from recsys.evaluation.significance import Table, refuse_unlike


class PooledSeeds(NamedTuple):
    """One metric of several seeds."""

    values: NDArray[np.float64]
    """Of every user [U]: the mean over the seeds. These go into paired tests."""
    interval: Interval
    """The mean over the users, and its interval over users: what other users would bring."""
    spread: float
    """Standard deviation of the seeds' own means: what another seed would bring; NaN of one."""
    means: tuple[float, ...]
    """Each seed's own mean."""


def pool_seeds(tables: Sequence[Table], metric: str) -> PooledSeeds:
    """One metric of the tables of several seeds, user by user.

    A user's values under two seeds are no independent observations: pooling makes them one, so more
    seeds do not narrow the interval over users.

    Args:
        tables: of the same targets under the same protocol, one per seed.
        metric: a name that the tables know.

    Raises:
        InputError: there are no tables, they are not of the same targets and protocol, or there is
            no such metric.
    """
    if not tables:
        raise InputError("seeds: name at least one run to pool")
    for other in tables[1:]:
        refuse_unlike(tables[0], other)
    each = np.stack([table.values(metric) for table in tables])
    values = each.mean(axis=0)
    distinct, counts = np.unique(values, return_counts=True)
    (interval,) = bootstrap_means(distinct[None], counts, np.random.default_rng(0))
    means = each.mean(axis=1)
    spread = float(means.std(ddof=1)) if len(means) > 1 else float("nan")
    return PooledSeeds(values, interval, spread, tuple(means.tolist()))
