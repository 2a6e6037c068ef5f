"""Every metric against trec_eval and scikit-learn with several targets per list; invariances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import pytrec_eval
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import (  # type: ignore[import-untyped]
    label_ranking_average_precision_score,
    ndcg_score,
    precision_score,
    recall_score,
)

from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.evaluation.tables import RankTable, evaluate
from recsys.inference.ranking import Ties

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


@pytest.mark.parametrize("k", [1, 3, 5, 10, ITEMS])
def test_parity_with_scikit_learn(k: int) -> None:
    scores, relevant = draw(100 + k)
    distinct = apart(scores)
    listed = np.argsort(np.argsort(-distinct, axis=1), axis=1) < k
    table = rank(scores, relevant)
    expected = {
        f"ndcg_at_{k}": ndcg_score(relevant, distinct, k=k),
        f"recall_at_{k}": recall_score(relevant, listed, average="samples"),
        f"precision_at_{k}": precision_score(relevant, listed, average="samples"),
        f"map_at_{ITEMS}": label_ranking_average_precision_score(relevant, distinct),
    }
    for name, mean in expected.items():
        assert table.values(name).mean() == pytest.approx(mean, abs=1e-9), name


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


@pytest.mark.slow
@given(st.integers(0, 10_000), st.sampled_from(["against_target", "item_id"]))
def test_strictly_monotone_maps_of_the_scores_change_nothing(seed: int, ties: Ties) -> None:
    scores, relevant = draw(seed)
    table = rank(scores, relevant, ties)
    for mapped in (3 * scores - 7, np.exp(scores), scores**3 / 9):
        again = rank(mapped.astype(np.float32), relevant, ties)
        for name in METRICS:
            metric = name.format(5)
            assert again.values(metric).tolist() == table.values(metric).tolist()


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
