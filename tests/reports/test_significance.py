"""The paired test: uniform under the null, sensitive to differences, strict about its inputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy import stats

from recsys.data.histories import Histories
from recsys.data.splits import NextPurchases
from recsys.errors import InputError
from recsys.evaluation.metrics import metric_values
from recsys.evaluation.tables import NextListTable, RankTable, next_list_table
from recsys.reports.statistics import Method, paired_difference, paired_test
from tests.helpers.rank_tables import ranked


def test_a_table_against_itself() -> None:
    same = ranked(np.array([1, 5, 20]))
    assert paired_test(same, same, "ndcg_at_10") == (0.0, 0.0, 0.0, 1.0)


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
    p_values = np.array(
        [
            paired_test(
                ranked(generator.geometric(0.05, 200)),
                ranked(generator.geometric(0.05, 200)),
                "mrr",
            ).p_value
            for _ in range(200)
        ]
    )
    # 200 draws of a uniform number: the empirical distribution stays within .115 (Kolmogorov, 1%).
    gaps = np.abs(np.sort(p_values) - (np.arange(200) + 0.5) / 200)
    assert gaps.max() < 0.115


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


def test_targets_of_one_user_are_one_observation() -> None:
    generator = np.random.default_rng(5)
    a, b = generator.integers(1, 15, 40), generator.integers(1, 15, 40)
    alone = paired_test(ranked(a), ranked(b), "ndcg_at_10")

    def fivefold(ranks: NDArray[np.int64]) -> RankTable:
        frame = ranked(ranks).frame
        return replace(ranked(ranks), frame=pl.concat([frame] * 5))

    together = paired_test(fivefold(a), fivefold(b), "ndcg_at_10")
    assert together.difference == pytest.approx(alone.difference)
    assert together.p_value == pytest.approx(alone.p_value, abs=0.02)


def test_same_seed_same_result() -> None:
    a, b = ranked(np.array([1, 2, 9, 30] * 20)), ranked(np.array([2, 2, 5, 50] * 20))
    assert paired_test(a, b, "mrr", seed=3) == paired_test(a, b, "mrr", seed=3)
    assert paired_test(a, b, "mrr", seed=3) != paired_test(a, b, "mrr", seed=4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("part", "valid"), ("num_items", 99), ("seen", "allow"), ("ties", "item_id"), ("dropped", 1)],
)
def test_other_protocols_are_refused(field: str, value: object) -> None:
    a = ranked(np.array([1, 2]))
    b = ranked([1, 2], **{field: value})
    with pytest.raises(InputError, match=f"differ in {field}: .* and {value!r}"):
        paired_test(a, b, "mrr")


def test_other_targets_are_refused() -> None:
    a = ranked(np.array([1, 2, 3]))
    with pytest.raises(InputError, match="have 3 and 2 targets"):
        paired_test(a, ranked(np.array([1, 2])), "mrr")
    other = a.frame.with_columns(user=pl.Series([0, 7, 2]))
    with pytest.raises(InputError, match="differ in the user of row 1: 1 and 7"):
        paired_test(a, replace(a, frame=other), "mrr")
    other = a.frame.with_columns(target=pl.Series([1, 1, 9], dtype=pl.Int32))
    with pytest.raises(InputError, match="differ in the target of row 2: 1 and 9"):
        paired_test(a, replace(a, frame=other), "mrr")


def test_no_p_value_is_0() -> None:
    """The signs that were observed are one of the ways to assign them, beside 10,000 drawn ones."""
    result = paired_test(ranked(np.full(60, 1)), ranked(np.full(60, 20)), "ndcg_at_10")
    assert result.p_value == 1 / 10_001


@pytest.mark.parametrize(
    ("method", "differences", "p_value"),
    [
        # Nothing is less than no difference, though sums of floats say 5e-17 for it.
        ("randomisation", [0.1, 0.2, -0.3] * 10, 1),
        ("randomisation", [0.63093, -0.5, -0.13093] * 10, 1),
        ("randomisation", [1.0], 1),  # one user proves nothing
        ("t", [1.0], 1),
        ("t", [0.0] * 3, 1),
        ("t", [0.1] * 3, 0),
    ],
)
def test_p_values_at_the_ends(method: Method, differences: list[float], p_value: float) -> None:
    ours = 0.3 + np.array(differences)
    assert paired_difference(ours, np.full(len(ours), 0.3), method=method).p_value == p_value


def test_many_small_differences_count() -> None:
    """.0017 each: they must not be rounded away."""
    result = paired_test(ranked(np.full(60, 200)), ranked(np.full(60, 300)), "mrr")
    assert result.p_value < 0.001
    assert result.difference == pytest.approx(1 / 600)
    assert result.low == pytest.approx(1 / 600, abs=1e-5)


def test_t_is_the_paired_t_test_of_scipy() -> None:
    generator = np.random.default_rng(0)
    a, b = (ranked(generator.geometric(p, 400)) for p in (0.06, 0.05))
    result = paired_test(a, b, "ndcg_at_10", method="t")
    expected = stats.ttest_rel(a.values("ndcg_at_10"), b.values("ndcg_at_10")).pvalue
    assert result.p_value == pytest.approx(expected, rel=1e-12)
    randomised = paired_test(a, b, "ndcg_at_10")
    assert result[:3] == randomised[:3]  # one interval
    assert result.p_value == pytest.approx(randomised.p_value, abs=0.02)


def table_of(lists: list[list[int]], targets: list[list[int]], dropped: int = 0) -> NextListTable:
    next_purchases = NextPurchases(
        users=np.arange(len(targets)) * 3,
        histories=Histories.from_lists([[1]] * len(targets)),
        targets=Histories.from_lists(targets),
        dropped=dropped,
    )
    return next_list_table(np.array(lists, dtype=np.int32), next_purchases, "test", 9, "allow")


def test_only_lists_for_the_same_users_and_purchases_are_compared() -> None:
    metric = "next_recall_at_3"
    table = table_of([[4, 2, 7], [1, 2, 3], [5, 0, 0]], [[2, 2, 7, 9], [4], [5, 6]], dropped=8)
    shorter = table_of([[4, 2], [1, 2], [5, 0]], [[2, 2, 7, 9], [4], [5, 6]], dropped=8)
    with pytest.raises(InputError, match="^next-list tables differ in length: 3 and 2; compare"):
        paired_test(table, shorter, metric)
    with pytest.raises(InputError, match="^next-list tables have 3 and 2 users$"):
        paired_test(table, replace(table, frame=table.frame.head(2)), metric)
    other = table.frame.with_columns(targets=pl.Series([[2, 2, 7, 9], [4], [6, 5]]))
    with pytest.raises(InputError, match=r"the targets of row 2: \[5, 6\] and \[6, 5\]$"):
        paired_test(table, replace(table, frame=other), metric)
