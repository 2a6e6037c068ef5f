"""The paired test: uniform under the null, sensitive to differences, strict about its inputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest

from recsys.errors import InputError
from recsys.evaluation.metrics import metric_values, summarise
from recsys.evaluation.tables import RankTable
from recsys.reports.statistics import holm, paired_difference, paired_test
from tests.helpers.rank_tables import ranked


def test_p_value_is_that_of_all_sign_flips() -> None:
    """Also if each user has five targets, which are one observation."""
    generator = np.random.default_rng(0)
    ranks = generator.integers(1, 15, (2, 10))
    ours, theirs = (metric_values(row, "ndcg_at_10") for row in ranks)
    flips = np.array(list(product([1, -1], repeat=10))) @ (ours - theirs)
    exact = np.mean(np.abs(flips) >= abs((ours - theirs).sum()) - 1e-12)
    a, b = map(ranked, ranks)
    several = (replace(table, frame=pl.concat([table.frame] * 5)) for table in (a, b))
    for first, second in ((a, b), several):
        result = paired_test(first, second, "ndcg_at_10")
        assert result.difference == pytest.approx((ours - theirs).mean())
        assert result.p_value == pytest.approx(exact, abs=0.02)


def test_p_values_are_uniform_when_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.reports.statistics.RESAMPLES", 500)
    pairs = np.random.default_rng(1).geometric(0.05, (200, 2, 200))
    tests = [paired_test(ranked(ours), ranked(theirs), "mrr") for ours, theirs in pairs]
    p_values = np.sort([test.p_value for test in tests])
    # 200 draws of a uniform number: the empirical distribution stays within .115 (Kolmogorov, 1%).
    assert np.abs(p_values - (np.arange(200) + 0.5) / 200).max() < 0.115


def test_a_planted_difference_is_found() -> None:
    generator = np.random.default_rng(2)
    worse = generator.integers(1, 60, 3_000)
    better = np.where(generator.random(3_000) < 0.1, (worse + 1) // 2, worse)
    result = paired_test(ranked(better), ranked(worse), "ndcg_at_10")
    assert result.p_value < 0.001
    assert 0 < result.low < result.difference < result.high
    opposite = paired_test(ranked(worse), ranked(better), "ndcg_at_10")
    assert (opposite.difference, opposite.p_value < 0.001) == (-result.difference, True)
    assert result == paired_test(ranked(better), ranked(worse), "ndcg_at_10")


@pytest.mark.parametrize(
    ("differences", "p_value"),
    [
        # Nothing is less than no difference, though sums of floats say 5e-17 for it.
        ([0.1, 0.2, -0.3] * 10, 1),
        ([0.63093, -0.5, -0.13093] * 10, 1),
        ([1.0], 1),  # one user proves nothing
        # The signs that were observed are one of the ways to assign them, beside 10,000 drawn ones.
        ([0.2] * 60, 1 / 10_001),
        ([1 / 600] * 60, 1 / 10_001),  # small ones are not rounded away
    ],
)
def test_p_values_at_the_ends(differences: list[float], p_value: float) -> None:
    ours = 0.3 + np.array(differences)
    assert paired_difference(ours, np.full(len(ours), 0.3)).p_value == p_value


def test_holm() -> None:
    # Sorted .005, .01, .03, .04 times 4, 3, 2, 1 is .02, .03, .06, .04; the last may not fall.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.slow
def test_one_test_in_twenty_is_a_false_alarm_and_nineteen_intervals_hold_the_truth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two scorers of one quality for the same users, some of whom are easy for both."""
    monkeypatch.setattr("recsys.reports.statistics.RESAMPLES", 1_000)
    generator, metric, users = np.random.default_rng(2026), "ndcg_at_3", 300

    def values_of_two(users: int) -> tuple[np.ndarray, np.ndarray]:
        easy = generator.beta(0.5, 4, users)
        ranks = generator.geometric(easy.clip(0.002), (2, users))
        return ranks[0], np.stack([metric_values(row, metric) for row in ranks])

    alarms, covered, intervals = [], [], []
    for seed in range(1_000):
        ranks, (ours, theirs) = values_of_two(users)
        result = paired_difference(ours, theirs, seed)
        alarms.append(result.p_value < 0.05)
        covered.append(result.low <= 0 <= result.high)
        intervals.append(summarise(ranks, np.arange(users), [metric])[metric])
    truth = values_of_two(2_000_000)[1].mean()
    assert 0.04 <= np.mean(alarms) <= 0.06
    for held in (covered, [low <= truth <= high for _, low, high in intervals]):
        assert 0.93 <= np.mean(held) <= 0.97


def other(column: str, values: list[int]) -> RankTable:
    table = ranked([1, 2, 3])
    series = pl.Series(column, values, dtype=table.frame[column].dtype)
    return replace(table, frame=table.frame.with_columns(series))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (ranked([1, 2, 3], part="valid"), "part"),
        (ranked([1, 2, 3], num_items=99), "num_items"),
        (ranked([1, 2, 3], seen="allow", dropped=1), "seen, dropped"),
        (ranked([1, 2]), "users or targets"),
        (other("user", [0, 7, 2]), "users or targets"),
        (other("target", [1, 1, 9]), "users or targets"),
    ],
)
def test_other_protocols_and_targets_are_refused(table: RankTable, words: str) -> None:
    with pytest.raises(InputError, match=f"rank tables differ in {words}$"):
        paired_test(ranked([1, 2, 3]), table, "mrr")
