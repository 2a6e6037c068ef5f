"""Scoring pairs of a user and an item: only these are scored, in bounded batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from recsys.inference import model_scorer
from recsys.inference import scorer as scorer_module
from recsys.model.heads import CandidateRepresentation, TargetAttentionHead
from recsys.serving.candidates import pair_batches
from recsys.serving.recommender import Recommender

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]
HISTORIES = {
    "ann": ["hat"],
    "bob": ["boots", "gloves"],
    "cat": ["jacket", "hat"],
    "new": [],
    "dan": ["socks", "socks", "hat"],
    "eve": ["gloves", "jacket"],
}


@pytest.fixture
def fresh(recommender: Recommender) -> Recommender:
    """One that has represented no catalogue yet: a bundle keeps its scorer."""
    return Recommender.load(recommender.bundle.path)


@pytest.fixture
def items_scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items the head has read, call by call; a catalogue is read once for all users."""
    counts: list[int] = []
    represent: Callable[..., CandidateRepresentation] = TargetAttentionHead.represent_candidates

    def count(head: TargetAttentionHead, embeddings: torch.Tensor) -> CandidateRepresentation:
        counts.append(embeddings.shape[:-1].numel())
        return represent(head, embeddings)

    monkeypatch.setattr(TargetAttentionHead, "represent_candidates", count)
    monkeypatch.setattr(model_scorer, "MOST_CANDIDATES", 1)
    return counts


def catalogue_scores(recommender: Recommender, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The scores of pairs, picked from every user's scores of all items."""
    best = recommender.recommend(HISTORIES, k=5, seen="allow")
    scores = {(user, item): score for user, item, score in best.select(best.columns[:3]).rows()}
    return [scores[pair] for pair in pairs]


def frame(pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    schema = {"user_id": pl.String, "item_id": pl.String}
    return pl.DataFrame(pairs, schema=schema, orient="row")


def test_only_the_candidates_are_scored(fresh: Recommender, items_scored: list[int]) -> None:
    pairs = [("dan", "hat"), ("ann", "boots"), ("dan", "socks"), ("dan", "boots"), ("new", "hat")]
    fresh.score(HISTORIES, frame(pairs))
    assert sum(items_scored) == 4  # the pair of the empty history needs no model
    items_scored.clear()
    fresh.score(HISTORIES, ["hat", "socks"])
    assert sum(items_scored) == 2  # the same for all users, so once
    items_scored.clear()
    fresh.recommend(HISTORIES, k=1)
    assert sum(items_scored) == 5 + 1  # the catalogue and PAD


@given(
    pairs=st.lists(
        st.tuples(st.sampled_from(sorted(HISTORIES)), st.sampled_from(ITEMS)), max_size=20
    ),
    users_per_batch=st.integers(1, 3),
)
def test_scores_of_pairs_are_those_of_the_catalogue(
    recommender: Recommender, pairs: list[tuple[str, str]], users_per_batch: int
) -> None:
    expected = catalogue_scores(recommender, pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scorer_module, "ELEMENTS_PER_BATCH", 1)
        patch.setattr(scorer_module, "FEWEST_USERS", users_per_batch)
        answer = recommender.score(HISTORIES, frame(pairs))
    assert_frame_equal(answer.select("user_id", "item_id"), frame(pairs))
    assert answer["score"].to_list() == pytest.approx(expected, abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), max_size=60))
def test_batches_are_less_than_half_padding(pairs: list[tuple[int, int]]) -> None:
    users = np.array([user for user, _ in pairs], dtype=np.int64)
    items = np.array([item for _, item in pairs], dtype=np.int32)
    assert all((candidates != 0).mean() > 0.5 for _, candidates, _ in pair_batches(users, items))
