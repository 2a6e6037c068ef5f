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


def test_false_alarms_of_the_randomisation_test(simulated: Simulated) -> None:
    rate = np.mean([result.p_value < 0.05 for result in simulated.results])
    assert 0.04 <= rate <= 0.06


def test_false_alarms_of_the_t_test(simulated: Simulated) -> None:
    rate = np.mean(np.array(simulated.t_values) < 0.05)
    assert 0.04 <= rate <= 0.06


def test_coverage_of_the_interval_of_a_difference(simulated: Simulated) -> None:
    rate = np.mean([result.low <= 0 <= result.high for result in simulated.results])
    assert 0.93 <= rate <= 0.97


def test_coverage_of_the_interval_of_a_metric(simulated: Simulated) -> None:
    rate = np.mean([low <= simulated.truth <= high for _, low, high in simulated.intervals])
    assert 0.93 <= rate <= 0.97
