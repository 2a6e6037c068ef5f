"""Is one model better than another for the same users, or is it luck?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from recsys.errors import InputError
from recsys.evaluation.metrics.intervals import bootstrap_means, chunks
from recsys.evaluation.tables.next_list import NextListTable
from recsys.evaluation.tables.rank import RankTable

Table = TypeVar("Table", RankTable, NextListTable)

Method = Literal["randomisation", "t"]
"""randomisation: no assumption but that the models are alike; t: Student's paired test, which takes
the users' differences for normal, and agrees with it on many users."""

RESAMPLES = 10_000
"""Resamples of the test and of the interval: p-values come in steps of a ten-thousandth."""

_DECIMALS = 5
"""Differences are resampled to so many decimals: that leaves few distinct ones, hence few draws."""


class PairedResult(NamedTuple):
    """How much better a is than b."""

    difference: float
    """Mean of a's metric less b's, over the users."""
    low: float
    """Lower end of the 95% percentile-bootstrap interval of the difference."""
    high: float
    """Upper end of it."""
    p_value: float
    """Two-sided: how often chance alone gives as large a difference, or a larger one."""


def paired_test(
    a: Table,
    b: Table,
    metric: str,
    seed: int = 0,
    *,
    method: Method = "randomisation",
    across_protocols: bool = False,
) -> PairedResult:
    """Paired test of two tables of the same targets, with an interval.

    If the two models were alike, the two values of each user could as well be swapped: the
    randomisation test flips the signs of the users' differences at random. (Smucker, Allan and
    Carterette, CIKM 2007, compare it with the t-test, the bootstrap and rank tests.) A user of
    several targets has one value: the targets of one user rise and fall together.

    Args:
        a: of one model.
        b: of the other.
        metric: one that `metric_values` knows; of continuation tables, a figure of `list_figures`.
        seed: of the resamples.
        method: of the p-value.
        across_protocols: the targets must be the same, the protocols need not.

    Raises:
        InputError: the tables differ in protocol, users or targets, or there is no such metric.
        ValueError: the tables are empty.
    """
    refuse_unlike(a, b, across_protocols=across_protocols)
    return paired_difference(a.values(metric), b.values(metric), seed, method=method)


def paired_difference(
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    seed: int = 0,
    *,
    method: Method = "randomisation",
) -> PairedResult:
    """`paired_test` of two values for each of U users [U]."""
    differences = ours - theirs
    values, counts = np.unique(differences.round(_DECIMALS), return_counts=True)
    generator = np.random.default_rng(seed)
    (interval,) = bootstrap_means(values[None], counts, generator, RESAMPLES)
    if method == "t":
        p_value = _t_p_value(differences)
    else:
        p_value = _sign_flip_p_value(values, counts, generator)
    return PairedResult(float(differences.mean()), interval.low, interval.high, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979), in the order given.

    The smallest of m is multiplied by m, the next by m - 1 and so on; none falls below a smaller
    one, none exceeds 1.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values)
    steps = np.take(p_values, order) * np.arange(len(order), 0, -1)
    return [float(p) for p in np.maximum.accumulate(steps).clip(max=1)[np.argsort(order)]]


def _sign_flip_p_value(
    values: NDArray[np.float64], counts: NDArray[np.int64], generator: np.random.Generator
) -> float:
    """Of n differences of one value, binomially many keep their sign: one draw per value."""
    # Sums in another order differ in the last bits; what equals the observed sum must count.
    observed = abs(values @ counts) * (1 - 1e-9)
    as_large = 0
    for rows in chunks(RESAMPLES, len(values)):
        kept = generator.binomial(counts, 0.5, size=(rows, len(values)))
        as_large += int(np.count_nonzero(np.abs((2 * kept - counts) @ values) >= observed))
    # The observed signs are one of the ways to assign them: no p-value is 0.
    return (as_large + 1) / (RESAMPLES + 1)


def _t_p_value(differences: NDArray[np.float64]) -> float:
    """Of differences that are all the same, 1 if they are 0, else 0: scipy would divide by 0."""
    if len(differences) < 2:
        return 1.0
    if not np.ptp(differences.round(_DECIMALS)):
        return float(not differences.round(_DECIMALS).any())
    return float(stats.ttest_1samp(differences, 0).pvalue)


def refuse_unlike(
    a: RankTable | NextListTable,
    b: RankTable | NextListTable,
    *,
    across_protocols: bool = False,
) -> None:
    """Tables of different protocols, unless told so, or of different users or targets.

    Raises:
        InputError: they are; the message names the field, or the row.
    """
    if isinstance(a, RankTable):
        tables, rows, bought = "rank tables", "targets", "target"
    else:
        tables, rows, bought = "continuation tables", "users", "targets"
    ours, theirs = asdict(a.protocol), asdict(b.protocol)
    for name, value in ours.items():
        if value != theirs[name] and not across_protocols:
            raise InputError(
                f"{tables} differ in {name}: {value!r} and {theirs[name]!r}; "
                "compare models evaluated alike"
            )
    if len(a.frame) != len(b.frame):
        raise InputError(f"{tables} have {len(a.frame)} and {len(b.frame)} {rows}")
    for column in ("user", bought):
        unequal = (a.frame[column] != b.frame[column]).arg_true()
        if len(unequal):
            row = int(unequal[0])
            one, other = (table.frame.row(row, named=True)[column] for table in (a, b))
            raise InputError(f"{tables} differ in the {column} of row {row}: {one} and {other}")
