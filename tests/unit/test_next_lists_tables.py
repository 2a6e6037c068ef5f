"""Metrics of lists: by hand, against scikit-learn, and properties of any list."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import f1_score, ndcg_score  # type: ignore[import-untyped]

from recsys.data.histories import PAD, Histories
from recsys.data.holdout import NextPurchases
from recsys.errors import InputError
from recsys.evaluation.metrics import next_list_metrics
from recsys.evaluation.tables import (
    NextListProtocol,
    NextListTable,
    RankTable,
    next_list_table,
)
from recsys.reports.statistics import paired_test

NUM_ITEMS = 9
SETS = ("next_recall", "next_ndcg", "next_f1")
IN_ORDER = ("next_ordered_recall", "next_ordered_ndcg")

tokens = st.integers(1, NUM_ITEMS)
targets_of_a_user = st.lists(tokens, min_size=1, max_size=12)


@st.composite
def lists_and_targets(draw: st.DrawFn) -> tuple[NDArray[np.int32], list[list[int]]]:
    """Lists of n distinct items, some of which end early, for a few users."""
    n = draw(st.integers(1, NUM_ITEMS))
    targets = draw(st.lists(targets_of_a_user, min_size=1, max_size=5))
    rows = []
    for _ in targets:
        listed = draw(st.lists(tokens, unique=True, max_size=n))
        rows.append(listed + [PAD] * (n - len(listed)))
    return np.array(rows, dtype=np.int32), targets


def metrics_of(lists: NDArray[np.int32], targets: list[list[int]]) -> dict[str, list[float]]:
    """By their names without the n."""
    n = lists.shape[1]
    metrics = next_list_metrics(lists, Histories.from_lists(targets))
    return {name.removesuffix(f"_at_{n}"): values.tolist() for name, values in metrics.items()}


def of_one(listed: list[int], bought: list[int]) -> dict[str, float]:
    metrics = metrics_of(np.array([listed], dtype=np.int32), [bought])
    return {name: value for name, (value,) in metrics.items()}


def test_hand_computed() -> None:
    lists = np.array([[4, 2, 7], [1, 2, 3], [5, PAD, PAD]], dtype=np.int32)
    found = metrics_of(lists, [[2, 2, 7, 9], [4], [5, 6]])
    two, three = 1 / log2(3), 1 / log2(4)  # the weight of the second place, and of the third
    assert found["next_recall"] == pytest.approx([2 / 3, 0, 1 / 2])
    assert found["next_ndcg"] == pytest.approx(
        [(two + three) / (1 + two + three), 0, 1 / (1 + two)]
    )
    assert found["next_f1"] == pytest.approx([2 * 2 / (3 + 3), 0, 2 * 1 / (1 + 2)])
    assert found["next_ordered_recall"] == pytest.approx([2 / 3, 0, 1 / 2])
    assert found["next_ordered_ndcg"] == found["next_ndcg"]


def test_an_item_listed_again_takes_a_position_and_gains_nothing() -> None:
    again, once = of_one([3, 3, 5], [3, 5]), of_one([3, 5, PAD], [3, 5])
    assert again["next_recall"] == once["next_recall"] == 1
    assert again["next_ndcg"] == pytest.approx((1 + 1 / log2(4)) / (1 + 1 / log2(3)))
    assert again["next_f1"] == 2 * 2 / (3 + 2)
    assert once["next_ndcg"] == once["next_f1"] == 1


def test_repeat_purchases_are_predicted_in_order() -> None:
    found = of_one([3, 3, 5], [3, 3, 5])
    assert (found["next_ordered_recall"], found["next_ordered_ndcg"]) == (1, 1)
    found = of_one([3, 5, 3], [3, 3, 5])
    assert found["next_ordered_recall"] == 1 / 3


@pytest.mark.parametrize("targets", [[[1]], [[1], []]])
def test_every_list_needs_targets(targets: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="2 lists need as many users, each with at least one"):
        next_list_metrics(np.array([[1], [2]], dtype=np.int32), Histories.from_lists(targets))


@given(lists_and_targets())
def test_parity_with_scikit_learn(case: tuple[NDArray[np.int32], list[list[int]]]) -> None:
    lists, targets = case
    found = metrics_of(lists, targets)
    n = lists.shape[1]
    for user, (listed, bought) in enumerate(zip(lists.tolist(), targets, strict=True)):
        # n more columns, relevant to nobody, take the places that are filled by nothing.
        relevant, scores = np.zeros((2, NUM_ITEMS + n))
        relevant[np.array(bought) - 1] = 1
        for place, item in enumerate(listed):
            scores[item - 1 if item else NUM_ITEMS + place] = n - place
        assert found["next_ndcg"][user] == pytest.approx(ndcg_score([relevant], [scores], k=n))
        in_list = (scores > 0)[:NUM_ITEMS]
        assert found["next_f1"][user] == pytest.approx(f1_score(relevant[:NUM_ITEMS], in_list))


@given(st.integers(1, 12), st.lists(targets_of_a_user, min_size=1, max_size=5))
def test_the_purchases_are_the_perfect_list(n: int, targets: list[list[int]]) -> None:
    in_order = Histories.from_lists([bought[:n] for bought in targets]).padded(n)
    found = metrics_of(in_order, targets)
    assert all(found[name] == pytest.approx([1] * len(targets)) for name in IN_ORDER)
    distinct = [list(dict.fromkeys(bought)) for bought in targets]
    as_sets = Histories.from_lists([bought[:n] for bought in distinct]).padded(n)
    found = metrics_of(as_sets, targets)
    assert found["next_ndcg"] == pytest.approx([1] * len(targets))
    whole = [len(bought) <= n for bought in distinct]
    for name in ("next_recall", "next_f1"):
        assert (np.isclose(found[name], 1)).tolist() == whole


@given(lists_and_targets(), st.randoms())
def test_set_metrics_ignore_the_order_of_targets(
    case: tuple[NDArray[np.int32], list[list[int]]], random: Random
) -> None:
    lists, targets = case
    mixed = [list(bought) for bought in targets]
    for bought in mixed:
        random.shuffle(bought)
    twice = [bought + bought for bought in mixed]
    expected, found, again = (metrics_of(lists, those) for those in (targets, mixed, twice))
    assert all(found[name] == again[name] == expected[name] for name in SETS)


def table_of(lists: list[list[int]], targets: list[list[int]], dropped: int = 0) -> NextListTable:
    next_purchases = NextPurchases(
        users=np.arange(len(targets)) * 3,
        histories=Histories.from_lists([[1]] * len(targets)),
        targets=Histories.from_lists(targets),
        dropped=dropped,
    )
    return next_list_table(
        np.array(lists, dtype=np.int32), next_purchases, "test", NUM_ITEMS, "allow"
    )


@pytest.fixture
def table() -> NextListTable:
    return table_of([[4, 2, 7], [1, 2, 3], [5, 0, 0]], [[2, 2, 7, 9], [4], [5, 6]], dropped=8)


def test_one_row_per_user(table: NextListTable) -> None:
    assert table.frame.to_dict(as_series=False) == {
        "user": [0, 3, 6],
        "generated": [[4, 2, 7], [1, 2, 3], [5, 0, 0]],
        "targets": [[2, 2, 7, 9], [4], [5, 6]],
    }
    assert table.frame.dtypes == [pl.Int64, pl.List(pl.Int32), pl.List(pl.Int32)]
    assert table.protocol == NextListProtocol("test", NUM_ITEMS, "allow", 3, 8)
    assert table.values("next_recall_at_3").tolist() == pytest.approx([2 / 3, 0, 1 / 2])


def test_summary_has_every_metric_with_its_mean(table: NextListTable) -> None:
    summary = table.summary()
    assert list(summary) == list(table.metrics())
    for name, interval in summary.items():
        assert interval.mean == pytest.approx(table.values(name).mean())
        assert interval.low <= interval.mean <= interval.high
    assert table.summary() == summary


def test_no_users_to_predict_for() -> None:
    nobody = next_list_table(
        np.empty((0, 4), dtype=np.int32),
        NextPurchases(np.arange(0), Histories.from_lists([]), Histories.from_lists([]), 0),
        "valid",
        NUM_ITEMS,
        "filter",
    )
    assert nobody.values("next_recall_at_4").shape == (0,)
    with pytest.raises(ValueError, match="no targets"):
        nobody.summary()


def test_load_returns_what_was_saved(table: NextListTable, tmp_path: Path) -> None:
    table.save(tmp_path / "lists.parquet")
    again = NextListTable.load(tmp_path / "lists.parquet")
    assert again.frame.equals(table.frame)
    assert again.frame.schema == table.frame.schema
    assert again.protocol == table.protocol
    assert [path.name for path in tmp_path.iterdir()] == ["lists.parquet"]


def test_load_refuses_other_tables(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    with pytest.raises(InputError, match=r"other\.parquet: cannot read the next-list table"):
        NextListTable.load(path)
    pl.DataFrame({"user": [1]}).write_parquet(path)
    with pytest.raises(InputError, match=r"not a next-list table: .*generated, .*targets"):
        NextListTable.load(path)
    with pytest.raises(InputError, match=r"not a rank table: .*rank"):
        RankTable.load(path)


def test_the_better_lists_are_found() -> None:
    generator = np.random.default_rng(1)
    targets = [[1 + item] for item in generator.integers(0, NUM_ITEMS, 2_000)]
    lists = [[1 + item] for item in generator.integers(0, NUM_ITEMS, 2_000)]
    better = [
        bought if lucky else listed
        for bought, listed, lucky in zip(targets, lists, generator.random(2_000) < 0.1, strict=True)
    ]
    a, b = table_of(better, targets), table_of(lists, targets)
    result = paired_test(a, b, "next_recall_at_1")
    difference = a.values("next_recall_at_1").mean() - b.values("next_recall_at_1").mean()
    assert result.difference == pytest.approx(difference)
    assert 0 < result.low < result.difference < result.high
    assert result.p_value < 0.001
    assert paired_test(a, a, "next_f1_at_1") == (0.0, 0.0, 0.0, 1.0)


def test_only_lists_for_the_same_users_and_purchases_are_compared(table: NextListTable) -> None:
    metric = "next_recall_at_3"
    shorter = table_of([[4, 2], [1, 2], [5, 0]], [[2, 2, 7, 9], [4], [5, 6]], dropped=8)
    with pytest.raises(InputError, match="^next-list tables differ in length: 3 and 2; compare"):
        paired_test(table, shorter, metric)
    with pytest.raises(InputError, match="^next-list tables have 3 and 2 users$"):
        paired_test(table, replace(table, frame=table.frame.head(2)), metric)
    other = table.frame.with_columns(targets=pl.Series([[2, 2, 7, 9], [4], [6, 5]]))
    with pytest.raises(InputError, match=r"the targets of row 2: \[5, 6\] and \[6, 5\]$"):
        paired_test(table, replace(table, frame=other), metric)
