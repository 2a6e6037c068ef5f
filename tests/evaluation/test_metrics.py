"""Metrics of ranks and of lists: against peers and by hand; intervals, names, the command."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np
import pytest
import pytrec_eval
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.metrics import (
    SOURCES,
    bootstrap_means,
    metric_values,
    next_list_metrics,
    source_of,
    summarise,
)
from recsys.evaluation.tables import RankTable, evaluate

RANKS = np.array([1, 2, 3, 11, 100])


def test_interval_is_that_of_the_normal_approximation_for_many_users() -> None:
    ranks = np.random.default_rng(2).geometric(0.02, 20_000)
    values = metric_values(ranks, "ndcg_at_10")
    half = 1.959964 * values.std() / np.sqrt(len(values))
    interval = summarise(ranks, np.arange(len(ranks)), ["ndcg_at_10"])["ndcg_at_10"]
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


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


def rank(scores: NDArray[np.float32], relevant: NDArray[np.bool_]) -> RankTable:
    users, columns = np.nonzero(relevant)
    histories = Histories.from_lists([[1] * user for user in users.tolist()])
    each = np.arange(len(users))
    holdout = Holdout(users, (columns + 1).astype(np.int32), each, histories, dropped=0)
    padded = np.insert(scores, 0, -np.inf, axis=1)
    return evaluate(Fixed(padded), holdout, "test", "allow")


def draw(seed: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Scores, no two of a user equal, and one to six targets of each user."""
    generator = np.random.default_rng(seed)
    scores = generator.random((USERS, ITEMS), dtype=np.float32)
    chances = generator.random((USERS, ITEMS)).argsort(axis=1)
    return scores, chances < generator.integers(1, 7, (USERS, 1))


@pytest.mark.parametrize("k", [1, 3, 5, 10, ITEMS])
def test_parity_with_trec_eval(k: int) -> None:
    scores, relevant = draw(k)
    qrel = {
        str(user): {str(item): 1 for item in np.flatnonzero(row)}
        for user, row in enumerate(relevant)
    }
    run = {
        str(user): {str(item): float(score) for item, score in enumerate(row)}
        for user, row in enumerate(scores)
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


def test_a_constant_scorer_is_at_chance_or_below() -> None:
    generator = np.random.default_rng(5)
    _, relevant = draw(5)
    constant = rank(np.ones((USERS, ITEMS), dtype=np.float32), relevant)
    chance = [rank(generator.random((USERS, ITEMS), dtype=np.float32), relevant) for _ in range(30)]
    for metric in (name.format(k) for name in [*TREC, "mrr_at_{}"] for k in (1, 5, ITEMS)):
        expected = np.mean([table.values(metric).mean() for table in chance])
        assert constant.values(metric).mean() <= expected + 1e-12, metric


# --- Lists of next purchases ----------------------------------------------------------------------


def metrics_of(lists: NDArray[np.int32], targets: list[list[int]]) -> dict[str, list[float]]:
    """By their names without the n."""
    n = lists.shape[1]
    metrics = next_list_metrics(lists, Histories.from_lists(targets))
    return {name.removesuffix(f"_at_{n}"): values.tolist() for name, values in metrics.items()}


def test_hand_computed() -> None:
    """With an item that is bought twice, and one that is listed twice and gains nothing."""
    lists = np.array([[4, 2, 7], [1, 2, 3], [5, PAD, PAD], [3, 3, 5]], dtype=np.int32)
    found = metrics_of(lists, [[2, 2, 7, 9], [4], [5, 6], [3, 5]])
    two, three = 1 / log2(3), 1 / log2(4)  # the weight of the second place, and of the third
    assert found["next_recall"] == pytest.approx([2 / 3, 0, 1 / 2, 1])
    ideal = 1 + two + three
    assert found["next_ndcg"] == pytest.approx(
        [(two + three) / ideal, 0, 1 / (1 + two), (1 + three) / (1 + two)]
    )
    assert found["next_f1"] == pytest.approx([2 * 2 / (3 + 3), 0, 2 * 1 / (1 + 2), 2 * 2 / (3 + 2)])
    assert found["next_ordered_recall"] == pytest.approx([2 / 3, 0, 1 / 2, 1 / 2])
    assert found["next_ordered_ndcg"] == pytest.approx(
        [(two + three) / ideal, 0, 1 / (1 + two), 1 / (1 + two)]
    )


# --- Names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("recall_at_10", "ranks"),
        ("hit_rate_at_1", "ranks"),
        ("mrr", "ranks"),
        ("mrr_at_10", "ranks"),
        ("next_ordered_ndcg_at_5", "next_lists"),
        ("gini_at_100", "logged"),
        ("popularity_lift_at_10", "logged"),
    ],
)
def test_a_metric_is_computed_from_its_table(name: str, source: str) -> None:
    assert source_of(name) == source


@pytest.mark.parametrize(
    "name", ["", "recall", "recall_at_0", "recall_at_x", "at_5", "mrr_at_", "x"]
)
def test_unknown_metrics_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match=f"^metric {name!r}: must be recall_at_K, ") as refused:
        source_of(name)
    assert all(f"{kind}_at_K" in str(refused.value) for kind in SOURCES)
    assert str(refused.value).endswith(" or mrr")
