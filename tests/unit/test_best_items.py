"""The best items: of scores block by block, of dot products that are rounded at first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.config import DotProduct, NextItemConfig, TargetAttention, parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import prepare
from recsys.inference import model_scorer, product_search, ranking
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.product_search import ProductSearch, bf16_is_faster
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


@settings(max_examples=150, deadline=None)
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


def search_of(vectors: Tensor, *, bf16: bool) -> ProductSearch:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_search, "bf16_is_faster", lambda _: bf16)
        return ProductSearch(vectors)


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small catalogues are searched, too."""
    monkeypatch.setattr(product_search, "_SHARE", 0)


def expected(vectors: Tensor, states: Tensor, k: int, excluded: Excluded) -> Tensor:
    """The tokens of the k largest products in double precision [B, k]; 0 where none are left."""
    products = states.double() @ vectors.double().T
    products[excluded] = -torch.inf
    best = products.sort(dim=1, descending=True, stable=True)
    return best.indices[:, :k].masked_fill(best.values[:, :k] == -torch.inf, 0)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bf16=st.booleans(),
    users=st.sampled_from([1, 3, 15, 16, 40]),
    items=st.integers(30, 3_000),
    k=st.integers(1, 20),
    size=st.sampled_from([1, 20_000, 1 << 22]),
    skew=st.sampled_from([0.0, 3.0]),
)
def test_as_sorting_all_products(
    seed: int, bf16: bool, users: int, items: int, k: int, size: int, skew: float
) -> None:
    """Also with vectors of very different lengths, and whatever fits into a block."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(skew * rng.normal(size=(items, 1)))
    vectors = torch.from_numpy((rng.normal(size=(items, 24)) * lengths).astype(np.float32))
    states = torch.from_numpy(rng.normal(size=(users, 24)).astype(np.float32))
    left_out = rng.random((users, items)) < 0.1
    left_out[:, 0] = True  # PAD
    excluded = excluded_of(left_out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_search, "_SHARE", 0)
        patch.setattr(product_search, "_BYTES", size)
        patch.setattr(product_search, "_MOST_KEPT", 10**6)  # small catalogues have few groups
        patch.setattr(product_search, "_MOST_SCORED", 10**6)
        best = search_of(vectors, bf16=bf16).best(states, k, excluded)
    assert best is not None
    wanted = expected(vectors, states, k, excluded)
    real = torch.from_numpy(np.isfinite(best[1]))
    assert np.array_equal(np.where(real, best[0], 0), wanted)
    products = (vectors[wanted] * states[:, None]).sum(2)
    assert torch.equal(torch.from_numpy(best[1])[real], products[real])


@pytest.mark.parametrize("bf16", [True, False])
def test_what_bf16_cannot_tell_apart_is_told_apart(bf16: bool, any_size: None) -> None:
    """A thousand products within one step of bf16, and two that are equal."""
    vectors = torch.ones(1_001, 4)
    vectors[:, 0] += torch.linspace(0, 0.003, 1_001)
    vectors[500] = vectors[1_000]
    best = search_of(vectors, bf16=bf16).best(torch.ones(1, 4), 40, NOTHING)
    assert best is not None
    assert best[0][0, :4].tolist() == [500, 1_000, 999, 998]
    assert best[0][0].tolist() == expected(vectors, torch.ones(1, 4), 40, NOTHING)[0].tolist()


@pytest.mark.parametrize("users", [1, 20])
def test_scores_do_not_depend_on_precision_or_other_users(users: int, any_size: None) -> None:
    """With "medium" torch may make products of float32 in bf16."""
    torch.manual_seed(0)
    vectors, states = torch.randn(5_000, 32), torch.randn(20, 32)[:users]
    exact = search_of(vectors, bf16=False).best(states, 10, NOTHING)
    assert exact is not None
    before = torch.get_float32_matmul_precision()
    for bf16, precision, rows in [
        (True, before, users),
        (True, before, 1),
        (False, "medium", users),
    ]:
        search = search_of(vectors, bf16=bf16)
        try:
            torch.set_float32_matmul_precision(precision)
            best = search.best(states[:rows], 10, NOTHING)
        finally:
            torch.set_float32_matmul_precision(before)
        assert best is not None
        assert all(
            np.array_equal(one, other[:rows]) for one, other in zip(best, exact, strict=True)
        )


@pytest.mark.parametrize("bf16", [True, False])
def test_what_the_bound_cannot_decide_is_left_to_others(bf16: bool, any_size: None) -> None:
    def search(vectors: Tensor, states: Tensor, k: int) -> object:
        return search_of(vectors, bf16=bf16).best(states, k, NOTHING)

    assert search(torch.ones(100_000, 4), torch.ones(2, 4), 1) is None  # all are equal
    torch.manual_seed(0)
    vectors = torch.randn(20_000, 8)
    vectors[::2] = 5.0
    states = torch.cat([torch.ones(1, 8), torch.randn(63, 8)])
    assert search(vectors, states, 10) is None  # half are as good as the best for one user
    states[0] = 0.0
    assert search(vectors, states, 10) is None
    for number in (torch.nan, torch.inf):
        assert search(torch.ones(100, 4), torch.tensor([[1.0, 1, 1, number]]), 1) is None
        assert search(torch.tensor([[1.0, 1, number]]).repeat(100, 1), torch.ones(1, 3), 1) is None


def test_long_lists_are_left_to_others() -> None:
    vectors, states = torch.randn(64 * 64 * 2, 4), torch.randn(1, 4)
    assert search_of(vectors, bf16=False).best(states, 2, NOTHING) is not None
    assert search_of(vectors, bf16=False).best(states, 3, NOTHING) is None


@pytest.mark.parametrize(("bf16", "taken"), [(0.5, True), (0.95, False), (2.0, False)])
def test_the_faster_precision_is_measured(
    bf16: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 is taken where it is clearly faster, and float32 where chance might decide."""
    types: list[torch.dtype] = []
    product = torch.Tensor.__matmul__

    def record(one: Tensor, other: Tensor) -> Tensor:
        types.append(one.dtype)
        return product(one, other)

    def share(*ways: object, **_: float) -> float:
        for way in ways:
            way()  # type: ignore[operator]
        return bf16

    monkeypatch.setattr(torch.Tensor, "__matmul__", record)
    monkeypatch.setattr(product_search, "median_share", share)
    assert bf16_is_faster(torch.randn(1_000, 8)) is taken
    assert types == [torch.bfloat16, torch.float32]  # each in its own precision


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
    """With a user of whom nothing is known among the others; its search is prepared once."""
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
    made: list[int] = []
    init = ProductSearch.__init__

    def count(search: ProductSearch, vectors: Tensor) -> None:
        made.append(len(vectors))
        init(search, vectors)

    monkeypatch.setattr(ProductSearch, "__init__", count)
    monkeypatch.setattr(ModelScorer, "score", refuse)
    found, again = (known.recommend(histories, k=5) for _ in range(2))
    assert found.equals(again)
    assert made == [dataset.num_items + 1]
    assert found["item_id"].equals(whole["item_id"])
    assert found["score"].to_list() == pytest.approx(whole["score"].to_list(), abs=1e-5)
