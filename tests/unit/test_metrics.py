"""Metrics of ranks, against hand-computed values and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (  # type: ignore[import-untyped]
    label_ranking_average_precision_score,
    ndcg_score,
    top_k_accuracy_score,
)

from recsys.errors import InputError
from recsys.evaluation.metrics import (
    bootstrap_means,
    metric_names,
    metric_values,
    summarise,
    user_means,
)

RANKS = np.array([1, 2, 3, 11, 100])
ranks_of_eight = st.lists(st.integers(1, 8), min_size=1, max_size=20).map(np.array)


def test_hand_computed() -> None:
    assert metric_values(RANKS, "recall_at_2").tolist() == [1, 1, 0, 0, 0]
    assert metric_values(RANKS, "ndcg_at_10").tolist() == pytest.approx(
        [1, 0.6309297535714575, 0.5, 0, 0]
    )
    assert metric_values(RANKS, "mrr").tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 11, 1 / 100])


@given(ranks_of_eight, st.integers(1, 8))
def test_parity_with_scikit_learn(ranks: np.ndarray, k: int) -> None:
    # Item 0 is the target; scores put rank - 1 of the seven others above it.
    scores = np.zeros((len(ranks), 8))
    scores[:, 1:] = np.where(np.arange(1, 8) < ranks[:, None], 1, -1) * np.arange(1, 8)
    relevant = np.zeros((len(ranks), 8))
    relevant[:, 0] = 1
    labels = np.zeros(len(ranks), dtype=int)
    assert metric_values(ranks, f"ndcg_at_{k}").mean() == pytest.approx(
        ndcg_score(relevant, scores, k=k)
    )
    assert metric_values(ranks, "mrr").mean() == pytest.approx(
        label_ranking_average_precision_score(relevant, scores)
    )
    if k < 8:  # scikit-learn warns that k = 8 of 8 is always 1
        accuracy = top_k_accuracy_score(labels, scores, k=k, labels=np.arange(8))
        assert metric_values(ranks, f"recall_at_{k}").mean() == pytest.approx(accuracy)


def test_values_by_name() -> None:
    assert metric_values(RANKS, "mrr_at_3").tolist() == pytest.approx([1, 1 / 2, 1 / 3, 0, 0])


@pytest.mark.parametrize(
    "name", ["recall@10", "recall_at_0", "auc_at_5", "mrr_at_", "ndcg_at_", ""]
)
def test_unknown_metrics_are_named(name: str) -> None:
    with pytest.raises(InputError, match=f"metric {name!r}: must be recall_at_K"):
        metric_values(RANKS, name)


def test_summary_has_every_metric_with_its_mean() -> None:
    summary = summarise(RANKS, np.arange(5), metric_names((1, 10)))
    assert list(summary) == ["recall_at_1", "recall_at_10", "ndcg_at_1", "ndcg_at_10", "mrr"]
    for name, interval in summary.items():
        values = metric_values(RANKS, name)
        assert interval.mean == pytest.approx(values.mean())
        assert values.min() <= interval.low <= interval.mean <= interval.high <= values.max()


def test_summary_of_no_ranks_is_an_error() -> None:
    with pytest.raises(ValueError, match="no targets"):
        summarise(np.array([], dtype=np.int64), np.array([], dtype=np.int64), ["mrr"])


def test_summary_of_equal_ranks_has_no_width() -> None:
    summary = summarise(np.full(50, 2), np.arange(50), ["recall_at_10"])
    assert summary == {"recall_at_10": (1.0, 1.0, 1.0)}


def test_summary_is_deterministic_and_ignores_the_order() -> None:
    ranks = np.random.default_rng(1).integers(1, 500, 1_000)
    users, names = np.arange(1_000), metric_names((5, 10))
    assert summarise(ranks, users, names) == summarise(np.sort(ranks), users, names)


def test_interval_is_that_of_the_normal_approximation_for_many_users() -> None:
    ranks = np.random.default_rng(2).geometric(0.02, 20_000)
    values = metric_values(ranks, "ndcg_at_10")
    half = 1.959964 * values.std() / np.sqrt(len(values))
    interval = summarise(ranks, np.arange(len(ranks)), ["ndcg_at_10"])["ndcg_at_10"]
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_interval_covers_the_truth_about_95_times_in_100() -> None:
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        ranks = generator.integers(1, 51, 400)  # recall@10 is 0.2 in truth
        interval = summarise(ranks, np.arange(400), ["recall_at_10"])["recall_at_10"]
        covered += interval.low <= 0.2 <= interval.high
    assert 180 <= covered <= 199


def test_a_user_of_several_targets_counts_once() -> None:
    ranks, users = np.array([1, 50, 50, 1, 50]), np.array([4, 9, 4, 7, 4])
    assert user_means(metric_values(ranks, "recall_at_10"), users).tolist() == pytest.approx(
        [1 / 3, 1, 0]
    )
    summary = summarise(ranks, users, ["recall_at_10"])
    assert summary["recall_at_10"].mean == pytest.approx((1 / 3 + 1 + 0) / 3)


def test_interval_of_correlated_targets_is_that_of_their_users() -> None:
    # Five targets a user, all hits or all misses: 5,000 targets tell no more than 1,000 users.
    hits = np.random.default_rng(4).integers(0, 2, 1_000)
    ranks = np.where(hits, 1, 100)
    alone = summarise(ranks, np.arange(1_000), ["recall_at_10"])["recall_at_10"]
    users = np.repeat(np.arange(1_000), 5)
    together = summarise(np.repeat(ranks, 5), users, ["recall_at_10"])["recall_at_10"]
    assert together.mean == alone.mean
    assert together.high - together.low == pytest.approx(alone.high - alone.low, rel=0.15)


def test_bootstrap_in_chunks_is_the_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    values, counts = np.array([[0.0, 1.0, 3.0]]), np.array([5, 3, 2])
    whole = bootstrap_means(values, counts, np.random.default_rng(0))
    monkeypatch.setattr("recsys.evaluation.metrics._DRAWS_AT_ONCE", 30)
    assert bootstrap_means(values, counts, np.random.default_rng(0)) == whole
