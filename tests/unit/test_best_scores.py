"""The best items of a catalogue that is scored block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from recsys.config import DotProduct, NextItemConfig, TargetAttention, parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import prepare
from recsys.inference import model_scorer, product_search, ranking
from recsys.inference.best_scores import best_of_blocks
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import NotANumberError, top_k
from recsys.inference.scorer import FEWEST_USERS, CatalogueBlock, Search, Seen
from recsys.model.build import build_model
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender

LARGE = 70_000
"""Items: so many that blocks are scored."""


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    users=st.integers(1, 4),
    items=st.integers(1, 500),
    k=st.integers(1, 20),
    levels=st.integers(1, 50),
    block=st.integers(1, 200),
)
def test_as_sorting_all_scores(
    seed: int, users: int, items: int, k: int, levels: int, block: int
) -> None:
    """With ties, scores of -inf, and fewer items than are wanted."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (users, items)).astype(np.float32)
    scores[scores == 0] = -np.inf
    excluded = rng.random((users, items)) < 0.1
    tokens, rows = np.nonzero(excluded.T)
    blocks = (
        CatalogueBlock(
            slice(start, min(items, start + block)),
            torch.from_numpy(scores[:, start : start + block].copy()),
        )
        for start in range(0, items, block)
    )
    left_out = torch.from_numpy(rows.copy()), torch.from_numpy(tokens.copy())
    values, found = best_of_blocks(blocks, k, users, left_out)
    scores[excluded] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    expected = np.full((users, k), -np.inf, dtype=np.float32)
    expected[:, : order.shape[1]] = np.take_along_axis(scores, order, axis=1)
    assert np.array_equal(values.numpy(), expected)
    real = np.isfinite(expected)
    assert np.array_equal(found.numpy()[real], order[real[:, : order.shape[1]]])


def counted_searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of histories of each call of `ModelScorer.searches` from now on."""
    calls: list[int] = []
    searches = ModelScorer.searches

    def count(
        scorer: ModelScorer, histories: Histories
    ) -> Iterator[tuple[NDArray[np.int64], Search]]:
        calls.append(len(histories))
        return searches(scorer, histories)

    monkeypatch.setattr(ModelScorer, "searches", count)
    return calls


@pytest.mark.parametrize("head", [DotProduct(), TargetAttention(num_heads=2, head_dim=4)])
@pytest.mark.parametrize("seen", ["filter", "allow"])
def test_a_large_catalogue_as_one_that_is_scored_whole(
    head: DotProduct | TargetAttention, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    config = NextItemConfig(embedding_dim=8, feed_forward_dim=16, max_sequence_length=5, head=head)
    model = build_model(config, LARGE)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    scorer = ModelScorer(model, 5)
    rng = np.random.default_rng(0)
    histories = Histories.from_lists([rng.integers(1, LARGE + 1, n) for n in (3, 1, 9, 2, 5)])
    liked, _ = top_k(scorer, histories, 100, "allow")
    histories = Histories.from_lists(liked[:, ::10].tolist())  # they would be recommended again
    monkeypatch.setattr(model_scorer, "_CPU_STEP", model_scorer._Step(12, 100_000))
    calls = counted_searches(monkeypatch)
    items, values = top_k(scorer, histories, 10, seen)
    assert calls
    monkeypatch.setattr(ranking, "finds_few", lambda *_: False)
    expected, expected_values = top_k(scorer, histories, 10, seen)
    np.testing.assert_allclose(values, expected_values, rtol=0, atol=1e-5)
    assert np.mean(items == expected) > 0.9  # but for scores that differ by rounding only
    kept = [set(row) & set(own) for row, own in zip(items, liked[:, ::10], strict=True)]
    assert any(kept) == (seen == "allow")


@pytest.mark.parametrize("bf16", [True, False])
def test_a_recommender_searches(
    bf16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a user of whom nothing is known among the others."""
    rows = np.arange(2 * LARGE)
    log = pl.DataFrame({"user_id": rows // 70, "item_id": rows % LARGE})
    dataset = prepare(log.with_row_index("timestamp"), out=tmp_path / "data")
    experiment = parse_experiment({"model": {"embedding_dim": 8, "max_sequence_length": 5}})
    torch.manual_seed(0)
    model = build_model(experiment.model, dataset.num_items)
    bundle = ModelBundle.write(tmp_path / "bundle", model, experiment, dataset, ("train",))
    known = Recommender(bundle, dataset)
    histories = {"a": [3, 5], "new": [], "b": [8]}
    calls = counted_searches(monkeypatch)
    monkeypatch.setattr(product_search, "bf16_is_faster", lambda _: bf16)
    found = known.recommend(histories, k=5)
    assert calls == [2]
    monkeypatch.setattr(ranking, "finds_few", lambda *_: False)
    whole = known.recommend(histories, k=5)
    assert calls == [2]
    assert found["item_id"].equals(whole["item_id"])
    assert found["score"].to_list() == pytest.approx(whole["score"].to_list(), abs=1e-5)


def test_a_recommender_prepares_its_search_once(
    tiny_dot_bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes as long as many answers."""
    made: list[int] = []
    init = product_search.ProductSearch.__init__

    def count(search: product_search.ProductSearch, vectors: torch.Tensor) -> None:
        made.append(len(vectors))
        init(search, vectors)

    monkeypatch.setattr(product_search.ProductSearch, "__init__", count)
    monkeypatch.setattr(product_search, "bf16_is_faster", lambda _: False)
    monkeypatch.setattr(ranking, "users_per_batch", lambda _: FEWEST_USERS)
    monkeypatch.setattr(ranking, "finds_few", lambda *_: True)
    known = Recommender(ModelBundle.open(tiny_dot_bundle.path))
    item = known.bundle.item_table["item_id"][0]
    first = known.recommend([[item]], k=2)
    assert first.equals(known.recommend([[item]], k=2))
    assert len(made) == 1


@dataclass(frozen=True)
class Broken:
    """A scorer whose last score is not a number."""

    num_items: int = LARGE

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """Not used."""
        raise NotImplementedError

    def searches(self, histories: Histories) -> Iterator[tuple[NDArray[np.int64], Search]]:
        """See `SearchingScorer`."""
        scores = torch.zeros(len(histories), self.num_items + 1)
        scores[-1, -1] = torch.nan
        half = self.num_items // 2
        slices = slice(0, half), slice(half, self.num_items + 1)
        blocks = (CatalogueBlock(s, scores[:, s]) for s in slices)
        yield np.arange(len(histories)), lambda k, out: best_of_blocks(blocks, k, len(scores), out)


def test_a_score_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(NotANumberError, match="Broken"):
        top_k(Broken(), Histories.from_lists([[1], [2]]), 10, "filter")
