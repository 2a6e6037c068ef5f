"""The tests and intervals keep their promises: 5% false alarms and 95% coverage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from recsys.evaluation.metrics import Interval, metric_values, summarise
from recsys.reports.statistics import PairedResult, _t_p_value, paired_difference

COMPARISONS, USERS, METRIC = 1_000, 300, "ndcg_at_3"


class Simulated(NamedTuple):
    results: list[PairedResult]
    t_values: list[float]
    intervals: list[Interval]
    truth: float
    """What each of the intervals should hold, of endless users."""


def ranks_of_two(generator: np.random.Generator, users: int) -> NDArray[np.int64]:
    """Ranks of two scorers of one quality for the same users, some of them easy for both."""
    easy = generator.beta(0.5, 4, users)
    return generator.geometric(easy.clip(0.002), (2, users))


def ndcg(ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.stack([metric_values(each, METRIC) for each in ranks])


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def simulated() -> Simulated:
    generator = np.random.default_rng(2026)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.reports.statistics.RESAMPLES", 1_000)
        results, t_values, intervals = [], [], []
        for seed in range(COMPARISONS):
            ranks = ranks_of_two(generator, USERS)
            ours, theirs = ndcg(ranks)
            results.append(paired_difference(ours, theirs, seed))
            t_values.append(_t_p_value(ours - theirs))
            summary = summarise(ranks[0], np.arange(USERS), [METRIC])
            intervals.append(summary[METRIC])
    truth = float(ndcg(ranks_of_two(generator, 2_000_000)).mean())
    return Simulated(results, t_values, intervals, truth)


def test_one_test_in_twenty_of_equal_scorers_is_a_false_alarm(simulated: Simulated) -> None:
    for p_values in ([result.p_value for result in simulated.results], simulated.t_values):
        assert 0.04 <= np.mean(np.array(p_values) < 0.05) <= 0.06


def test_nineteen_of_twenty_intervals_hold_the_truth(simulated: Simulated) -> None:
    differences = [result.low <= 0 <= result.high for result in simulated.results]
    metrics = [low <= simulated.truth <= high for _, low, high in simulated.intervals]
    for covered in (differences, metrics):
        assert 0.93 <= np.mean(covered) <= 0.97
