"""The best items, of scores block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.config import DotProduct, NextItemConfig, TargetAttention, parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import prepare
from recsys.inference import model_scorer, ranking
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import (
    CatalogueBlock,
    Excluded,
    NotANumberError,
    best_of_blocks,
    top_k,
)
from recsys.inference.scorer import FEWEST_USERS, Scored, Seen
from recsys.model.build import build_model
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender

LARGE = 70_000
"""Items: so many that blocks are scored."""
NOTHING = Excluded(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
ANY = Scored(torch.zeros(1, 2))


def excluded_of(left_out: np.ndarray) -> Excluded:
    tokens, rows = np.nonzero(left_out.T)
    return Excluded(torch.from_numpy(rows.copy()), torch.from_numpy(tokens.copy()))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    users=st.integers(1, 4),
    items=st.integers(1, 500),
    k=st.integers(1, 20),
    levels=st.integers(1, 50),
    block=st.integers(1, 200),
    group=st.sampled_from([1, 3, 64]),
    kept=st.sampled_from([1, 64]),
)
def test_best_of_blocks_as_sorting_all_scores(
    seed: int, users: int, items: int, k: int, levels: int, block: int, group: int, kept: int
) -> None:
    """With ties, scores of -inf, and fewer items than are wanted."""
    rng, k = np.random.default_rng(seed), min(k, items)
    scores = rng.integers(0, levels, (users, items)).astype(np.float32)
    scores[scores == 0] = -np.inf
    left_out = rng.random((users, items)) < 0.1
    left_out[:, 0] = True  # PAD
    blocks = (
        CatalogueBlock(
            slice(start, min(items, start + block)),
            torch.from_numpy(scores[:, start : start + block].copy()),
        )
        for start in range(0, items, block)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_GROUP", group)
        patch.setattr(ranking, "_MOST_KEPT", kept)
        tokens, values = best_of_blocks(ANY, blocks, k, excluded_of(left_out))
    scores[left_out] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    expected = np.take_along_axis(scores, order, axis=1)
    assert np.array_equal(values, expected)
    assert np.array_equal(tokens, np.where(np.isfinite(expected), order, 0))


def test_a_score_that_is_not_a_number_is_refused() -> None:
    scores = torch.zeros(2, 10)
    scores[-1, -1] = torch.nan
    blocks = [
        CatalogueBlock(slice(0, 5), scores[:, :5]),
        CatalogueBlock(slice(5, 10), scores[:, 5:]),
    ]
    with pytest.raises(NotANumberError, match="Scored.score gave NaN"):
        best_of_blocks(ANY, blocks, 2, NOTHING)


def refuse(*_: object) -> None:
    raise AssertionError("all items are scored at once")


@pytest.mark.parametrize("head", [DotProduct(), TargetAttention(num_heads=2, head_dim=4)])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("seen", ["filter", "allow"])
def test_a_large_catalogue_as_one_that_is_scored_whole(
    head: DotProduct | TargetAttention, trained: bool, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    config = NextItemConfig(embedding_dim=8, feed_forward_dim=16, max_sequence_length=5, head=head)
    model = build_model(config, LARGE)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    scorer = ModelScorer(model, 5, trained=trained)
    rng = np.random.default_rng(0)
    histories = Histories.from_lists([rng.integers(1, LARGE + 1, n) for n in (3, 1, 9, 2, 5)])
    with monkeypatch.context() as patch:
        patch.setattr(model_scorer, "users_per_batch", lambda _: FEWEST_USERS + 1)
        liked, _ = top_k(scorer, histories, 100, "allow")
        histories = Histories.from_lists(liked[:, ::10].tolist())  # to be recommended again
        whole, whole_values = top_k(scorer, histories, 10, seen)
    monkeypatch.setattr(model_scorer, "_CPU_STEP", model_scorer._Step(12, 100_000))
    monkeypatch.setattr(ModelScorer, "score", refuse)
    items, values = top_k(scorer, histories, 10, seen)
    np.testing.assert_allclose(values, whole_values, rtol=0, atol=1e-5)
    assert np.mean(items == whole) > 0.9  # but for scores that differ by rounding only
    kept = [set(row) & set(own) for row, own in zip(items, liked[:, ::10], strict=True)]
    assert any(kept) == (seen == "allow")


def test_a_recommender_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a user of whom nothing is known among the others."""
    rows = np.arange(2 * LARGE)
    log = pl.DataFrame({"user_id": rows // 70, "item_id": rows % LARGE})
    dataset = prepare(log.with_row_index("timestamp"), out=tmp_path / "data")
    sizes = {"embedding_dim": 8, "max_sequence_length": 5, "head": {"kind": "dot_product"}}
    experiment = parse_experiment({"model": sizes})
    torch.manual_seed(0)
    model = build_model(experiment.model, dataset.num_items)
    bundle = ModelBundle.write(tmp_path / "bundle", model, experiment, dataset, ("train",))
    known = Recommender(bundle, dataset)
    histories = {"a": [3, 5], "new": [], "b": [8]}
    with monkeypatch.context() as patch:
        patch.setattr(model_scorer, "users_per_batch", lambda _: FEWEST_USERS + 1)
        whole = known.recommend(histories, k=5)
    monkeypatch.setattr(ModelScorer, "score", refuse)
    found, again = (known.recommend(histories, k=5) for _ in range(2))
    assert found.equals(again)
    assert found["item_id"].equals(whole["item_id"])
    assert found["score"].to_list() == pytest.approx(whole["score"].to_list(), abs=1e-5)
