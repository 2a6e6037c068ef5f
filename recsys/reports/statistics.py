"""Is one model better than another for the same users, or is it luck?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from recsys.errors import InputError
from recsys.evaluation.metrics import bootstrap_means, chunks
from recsys.evaluation.tables import NextListTable, RankTable, TableProtocol

Table = TypeVar("Table", RankTable, NextListTable)

ALPHA = 0.05
"""Differences with a smaller p-value are called significant."""
RESAMPLES = 10_000  # p-values are multiples of 1/10,001
_DECIMALS = 5  # differences are rounded: few distinct ones need few draws


class PairedResult(NamedTuple):
    """The difference of two models a and b in one metric."""

    difference: float
    """The mean over the users of a's metric minus b's."""
    low: float
    """The lower end of the 95% percentile-bootstrap interval of the difference."""
    high: float
    p_value: float
    """Two-sided: the probability of a difference at least as large by chance."""

    @property
    def of_b_against_a(self) -> PairedResult:
        """The same test, seen from the other model."""
        return PairedResult(-self.difference, -self.high, -self.low, self.p_value)


def differing_fields(a: TableProtocol, b: TableProtocol) -> list[str]:
    """Return the names of the fields in which two protocols differ."""
    names = (field.name for field in fields(a))
    return [name for name in names if getattr(a, name) != getattr(b, name)]


def paired_test(a: Table, b: Table, metric: str, seed: int = 0) -> PairedResult:
    """Test the difference of two tables of the same targets in a metric that they know.

    If the two models were equally good, the two values of each user could be swapped: the
    randomisation test flips the signs of the users' differences at random (Smucker, Allan and
    Carterette, CIKM 2007). A user with several targets has one value: they are not independent.

    Raises:
        InputError: the tables differ in protocol, users or targets, or there is no such metric.
    """
    keys = ["user", "target" if "target" in a.frame.columns else "targets"]
    differing = differing_fields(a.protocol, b.protocol)
    if not differing and not a.frame[keys].equals(b.frame[keys]):
        differing = ["users or targets"]
    if differing:
        raise InputError(f"{a.noun}s differ in {', '.join(differing)}")
    return paired_difference(a.values(metric), b.values(metric), seed)


def paired_difference(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], seed: int = 0
) -> PairedResult:
    """Test the difference of two values of each user [U]; see `paired_test`."""
    differences = ours - theirs
    values, counts = np.unique(differences.round(_DECIMALS), return_counts=True)
    generator = np.random.default_rng(seed)
    (interval,) = bootstrap_means(values[None], counts, generator, RESAMPLES)
    p_value = _sign_flip_p_value(values, counts, generator)
    return PairedResult(float(differences.mean()), interval.low, interval.high, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979), in the order given.

    The smallest of m is multiplied by m, the next by m - 1; none falls below a smaller one.
    """
    order = np.argsort(p_values)
    steps = np.take(p_values, order) * np.arange(len(order), 0, -1)
    return [float(p) for p in np.maximum.accumulate(steps).clip(max=1)[np.argsort(order)]]


def _sign_flip_p_value(
    values: NDArray[np.float64], counts: NDArray[np.int64], generator: np.random.Generator
) -> float:
    """Flip signs at random: of n equal differences binomially many keep theirs, in one draw."""
    # Sums of integer steps are exact, so a flipped sum that equals the observed one, 0 too, counts.
    steps = np.rint(values * 10**_DECIMALS)
    observed = abs(steps @ counts)
    as_large = 0
    for rows in chunks(RESAMPLES, len(values)):
        kept = generator.binomial(counts, 0.5, size=(rows, len(values)))
        as_large += int(np.count_nonzero(np.abs((2 * kept - counts) @ steps) >= observed))
    # The observed signs are one of the ways to assign them: no p-value is 0.
    return (as_large + 1) / (RESAMPLES + 1)
