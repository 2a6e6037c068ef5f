"""Metrics of ranks: against trec_eval and by hand; their means and intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import pytrec_eval
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.errors import InputError
from recsys.evaluation.metrics import (
    bootstrap_means,
    metric_names,
    metric_values,
    summarise,
    user_means,
)
from recsys.evaluation.tables import RankTable, evaluate
from recsys.inference.ranking import Ties

RANKS = np.array([1, 2, 3, 11, 100])
ranks_of_eight = st.lists(st.integers(1, 8), min_size=1, max_size=20).map(np.array)


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


def test_interval_is_that_of_the_normal_approximation_for_many_users() -> None:
    ranks = np.random.default_rng(2).geometric(0.02, 20_000)
    values = metric_values(ranks, "ndcg_at_10")
    half = 1.959964 * values.std() / np.sqrt(len(values))
    interval = summarise(ranks, np.arange(len(ranks)), ["ndcg_at_10"])["ndcg_at_10"]
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


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


USERS, ITEMS = 60, 30
TREC = {
    "recall_at_{}": "recall_{}",
    "hit_rate_at_{}": "success_{}",
    "precision_at_{}": "P_{}",
    "ndcg_at_{}": "ndcg_cut_{}",
    "map_at_{}": "map_cut_{}",
}
METRICS = [*TREC, "mrr_at_{}"]


@dataclass(frozen=True)
class Fixed:
    """Scores [U, I + 1], whatever the histories; row by row, in the order of the histories."""

    scores: NDArray[np.float32]

    @property
    def num_items(self) -> int:
        return int(self.scores.shape[1]) - 1

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        assert candidates is None
        # Each history is the number of its user, in marks of item 1.
        return torch.from_numpy(self.scores[histories.lengths])


def rank(
    scores: NDArray[np.float32], relevant: NDArray[np.bool_], ties: Ties = "item_id"
) -> RankTable:
    users, columns = np.nonzero(relevant)
    histories = Histories.from_lists([[1] * user for user in users.tolist()])
    each = np.arange(len(users))
    holdout = Holdout(users, (columns + 1).astype(np.int32), each, each, histories, dropped=0)
    padded = np.insert(scores, 0, -np.inf, axis=1)
    return evaluate(Fixed(padded), holdout, "test", "allow", ties)


def draw(seed: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Scores with many ties, and one to six targets of each user."""
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 8, (USERS, ITEMS)).astype(np.float32)
    chances = generator.random((USERS, ITEMS)).argsort(axis=1)
    return scores, chances < generator.integers(1, 7, (USERS, 1))


def apart(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """The same order, ties broken by item: peers order ties each in a way of its own."""
    return scores.astype(np.float64) * ITEMS - np.arange(ITEMS)


@pytest.mark.parametrize("k", [1, 3, 5, 10, ITEMS])
def test_parity_with_trec_eval(k: int) -> None:
    scores, relevant = draw(k)
    qrel = {
        str(user): {str(item): 1 for item in np.flatnonzero(row)}
        for user, row in enumerate(relevant)
    }
    run = {
        str(user): {str(item): float(score) for item, score in enumerate(row)}
        for user, row in enumerate(apart(scores))
    }
    names = {ours.format(k): theirs.format(k) for ours, theirs in TREC.items()}
    measures = {"recip_rank"} | {f"{name.rpartition('_')[0]}.{k}" for name in names.values()}
    found = pytrec_eval.RelevanceEvaluator(qrel, measures).evaluate(run)
    table = rank(scores, relevant)
    for ours, theirs in {**names, "mrr": "recip_rank"}.items():
        expected = [found[str(user)][theirs] for user in range(USERS)]
        np.testing.assert_allclose(table.values(ours), expected, rtol=0, atol=1e-9, err_msg=ours)
    # trec_eval has no cut-off for it: the k best alone are handed over.
    best = {
        user: dict(sorted(row.items(), key=lambda pair: -pair[1])[:k]) for user, row in run.items()
    }
    cut = pytrec_eval.RelevanceEvaluator(qrel, {"recip_rank"}).evaluate(best)
    expected = [cut[str(user)]["recip_rank"] for user in range(USERS)]
    np.testing.assert_allclose(table.values(f"mrr_at_{k}"), expected, rtol=0, atol=1e-9)


def test_by_hand() -> None:
    # Targets at places 2, 3 and 7 of one list; at place 1 of another.
    scores = np.array([[9, 8, 7, 6, 5, 4, 3], [9, 8, 7, 6, 5, 4, 3]], dtype=np.float32)
    relevant = np.array([[0, 1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0]], dtype=bool)
    table = rank(scores, relevant)
    ideal = 1 + 1 / np.log2(3) + 1 / 2
    expected = {
        "recall_at_5": 2 / 3,
        "hit_rate_at_5": 1,
        "hit_rate_at_1": 0,
        "precision_at_5": 2 / 5,
        "ndcg_at_5": (1 / np.log2(3) + 1 / 2) / ideal,
        "ndcg_at_2": (1 / np.log2(3)) / (1 + 1 / np.log2(3)),
        "map_at_5": (1 / 2 + 2 / 3) / 3,
        "map_at_7": (1 / 2 + 2 / 3 + 3 / 7) / 3,
        "mrr": 1 / 2,
        "mrr_at_1": 0,
    }
    for name, value in expected.items():
        one, other = table.values(name)
        assert one == pytest.approx(value), name
        assert other == pytest.approx(1 / 5 if name == "precision_at_5" else 1), name


@pytest.mark.parametrize("k", [1, 5, ITEMS])
@pytest.mark.parametrize("name", METRICS)
def test_a_constant_scorer_is_at_chance_or_below(name: str, k: int) -> None:
    generator = np.random.default_rng(5)
    _, relevant = draw(5)
    metric = name.format(k)
    constant = rank(np.ones((USERS, ITEMS), dtype=np.float32), relevant, "against_target")
    chance = np.mean(
        [
            rank(generator.random((USERS, ITEMS), dtype=np.float32), relevant).values(metric).mean()
            for _ in range(30)
        ]
    )
    assert constant.values(metric).mean() <= chance + 1e-12
