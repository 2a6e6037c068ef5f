"""The paired test: uniform under the null, sensitive to differences, strict about its inputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest
from scipy import stats

from recsys.errors import InputError
from recsys.evaluation.metrics import metric_values, summarise
from recsys.evaluation.tables import RankTable
from recsys.reports.statistics import Method, holm, paired_difference, paired_test
from tests.helpers.rank_tables import ranked


def test_p_value_is_that_of_all_sign_flips() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.integers(1, 15, 10), generator.integers(1, 15, 10)
    differences = metric_values(a, "ndcg_at_10") - metric_values(b, "ndcg_at_10")
    flips = np.array(list(product([1, -1], repeat=10))) @ differences
    exact = np.mean(np.abs(flips) >= abs(differences.sum()) - 1e-12)
    result = paired_test(ranked(a), ranked(b), "ndcg_at_10")
    assert result.difference == pytest.approx(differences.mean())
    assert result.p_value == pytest.approx(exact, abs=0.02)


def test_p_values_are_uniform_when_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.reports.statistics.RESAMPLES", 500)
    generator = np.random.default_rng(1)
    pairs = generator.geometric(0.05, (200, 2, 200))
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
    assert opposite.difference == -result.difference
    assert opposite.p_value < 0.001
    assert result == paired_test(ranked(better), ranked(worse), "ndcg_at_10")


def test_targets_of_one_user_are_one_observation() -> None:
    generator = np.random.default_rng(5)
    a, b = (ranked(ranks) for ranks in generator.integers(1, 15, (2, 40)))
    alone = paired_test(a, b, "ndcg_at_10")
    a, b = (replace(table, frame=pl.concat([table.frame] * 5)) for table in (a, b))
    together = paired_test(a, b, "ndcg_at_10")
    assert together.difference == pytest.approx(alone.difference)
    assert together.p_value == pytest.approx(alone.p_value, abs=0.02)


@pytest.mark.parametrize(
    ("method", "differences", "p_value"),
    [
        # Nothing is less than no difference, though sums of floats say 5e-17 for it.
        ("randomisation", [0.1, 0.2, -0.3] * 10, 1),
        ("randomisation", [0.63093, -0.5, -0.13093] * 10, 1),
        ("randomisation", [1.0], 1),  # one user proves nothing
        # The signs that were observed are one of the ways to assign them, beside 10,000 drawn ones.
        ("randomisation", [0.2] * 60, 1 / 10_001),
        ("randomisation", [1 / 600] * 60, 1 / 10_001),  # small ones are not rounded away
        ("t", [1.0], 1),
        ("t", [0.0] * 3, 1),
        ("t", [0.1] * 3, 0),
    ],
)
def test_p_values_at_the_ends(method: Method, differences: list[float], p_value: float) -> None:
    ours = 0.3 + np.array(differences)
    assert paired_difference(ours, np.full(len(ours), 0.3), method=method).p_value == p_value


def test_t_is_the_paired_t_test_of_scipy() -> None:
    generator = np.random.default_rng(0)
    a, b = (ranked(generator.geometric(p, 400)) for p in (0.06, 0.05))
    result = paired_test(a, b, "ndcg_at_10", method="t")
    expected = stats.ttest_rel(a.values("ndcg_at_10"), b.values("ndcg_at_10")).pvalue
    assert result.p_value == pytest.approx(expected, rel=1e-12)
    randomised = paired_test(a, b, "ndcg_at_10")
    assert result[:3] == randomised[:3]  # one interval
    assert result.p_value == pytest.approx(randomised.p_value, abs=0.02)


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

    alarms, t_alarms, covered, intervals = [], [], [], []
    for seed in range(1_000):
        ranks, (ours, theirs) = values_of_two(users)
        result = paired_difference(ours, theirs, seed)
        alarms.append(result.p_value < 0.05)
        t_alarms.append(paired_difference(ours, theirs, seed, method="t").p_value < 0.05)
        covered.append(result.low <= 0 <= result.high)
        intervals.append(summarise(ranks, np.arange(users), [metric])[metric])
    truth = values_of_two(2_000_000)[1].mean()
    for rejected in (alarms, t_alarms):
        assert 0.04 <= np.mean(rejected) <= 0.06
    for held in (covered, [low <= truth <= high for _, low, high in intervals]):
        assert 0.93 <= np.mean(held) <= 0.97


@pytest.mark.parametrize(
    ("field", "value"),
    [("part", "valid"), ("num_items", 99), ("seen", "allow"), ("dropped", 1)],
)
def test_other_protocols_are_refused(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"differ in {field}: .* and {value!r}"):
        paired_test(ranked([1, 2]), ranked([1, 2], **{field: value}), "mrr")


def other(table: RankTable, column: str, values: list[int]) -> RankTable:
    series = pl.Series(column, values, dtype=table.frame[column].dtype)
    return replace(table, frame=table.frame.with_columns(series))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (ranked([1, 2, 3]), ranked([1, 2]), "rank tables have 3 and 2 targets"),
        (
            ranked([1, 2, 3]),
            other(ranked([1, 2, 3]), "user", [0, 7, 2]),
            "differ in the user of row 1: 1 and 7",
        ),
        (
            ranked([1, 2, 3]),
            other(ranked([1, 2, 3]), "target", [1, 1, 9]),
            "differ in the target of row 2: 1 and 9",
        ),
    ],
)
def test_other_targets_are_refused(a: RankTable, b: RankTable, message: str) -> None:
    with pytest.raises(InputError, match=message):
        paired_test(a, b, "mrr")
