"""The search of the best items by dot products, which are rounded at first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.inference import product_search
from recsys.inference.product_search import ProductSearch, bf16_is_faster

NOTHING = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)


@pytest.fixture(params=[True, False], ids=["bf16", "float32"])
def rounded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the first pass is in bf16."""
    monkeypatch.setattr(product_search, "bf16_is_faster", lambda _: request.param)
    return bool(request.param)


def search_of(vectors: Tensor, *, bf16: bool) -> ProductSearch:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_search, "bf16_is_faster", lambda _: bf16)
        return ProductSearch(vectors)


def expected(vectors: Tensor, states: Tensor, k: int, excluded: tuple[Tensor, Tensor]) -> Tensor:
    """The tokens of the k largest products in double precision [B, k]; 0 where none are left."""
    products = states.double() @ vectors.double().T
    products[excluded] = -torch.inf
    found = products.sort(dim=1, descending=True, stable=True)
    return found.indices[:, :k].masked_fill(found.values[:, :k] == -torch.inf, 0)


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
    out = rng.random((users, items)) < 0.1
    out[:, 0] = True  # PAD
    tokens, rows = (torch.from_numpy(part.copy()) for part in np.nonzero(out.T))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_search, "_BYTES", size)
        patch.setattr(product_search, "_MOST_KEPT", 10**6)  # small catalogues have few groups
        patch.setattr(product_search, "_MOST_SCORED", 10**6)
        found = search_of(vectors, bf16=bf16).best(states, k, (rows, tokens))
    assert found is not None
    scores, items_found = found
    wanted = expected(vectors, states, k, (rows, tokens))
    real = scores.isfinite()
    assert torch.equal(items_found.masked_fill(~real, 0), wanted)
    products = (vectors[wanted] * states[:, None]).sum(2)
    torch.testing.assert_close(scores[real], products[real], rtol=0, atol=0)


def test_what_bf16_cannot_tell_apart_is_told_apart(rounded: bool) -> None:
    """A thousand products within one step of bf16, and two that are equal."""
    assert rounded in {True, False}
    vectors = torch.ones(1_001, 4)
    vectors[:, 0] += torch.linspace(0, 0.003, 1_001)
    vectors[500] = vectors[1_000]
    found = ProductSearch(vectors).best(torch.ones(1, 4), 40, NOTHING)
    assert found is not None
    assert found[1][0, :4].tolist() == [500, 1_000, 999, 998]
    assert torch.equal(found[1][0], expected(vectors, torch.ones(1, 4), 40, NOTHING)[0])


@pytest.mark.parametrize("users", [1, 20])
def test_scores_do_not_depend_on_the_precision_or_on_other_users(users: int) -> None:
    torch.manual_seed(0)
    vectors, states = torch.randn(5_000, 32), torch.randn(users, 32)
    for state in (states, states[:1]):
        bf16, float32 = (
            search_of(vectors, bf16=on).best(state, 10, NOTHING) for on in (True, False)
        )
        assert bf16 is not None
        assert float32 is not None
        assert torch.equal(bf16[0], float32[0])
        assert torch.equal(bf16[1], float32[1])
    search = search_of(vectors, bf16=True)
    alone, together = search.best(states[:1], 10, NOTHING), search.best(states, 10, NOTHING)
    assert alone is not None
    assert together is not None
    assert torch.equal(alone[0][0], together[0][0])


def test_a_process_that_allows_coarse_products_gets_the_same() -> None:
    """With "medium" torch may make products of float32 in bf16."""
    torch.manual_seed(0)
    vectors, states = torch.randn(5_000, 32), torch.randn(20, 32)
    search = search_of(vectors, bf16=False)
    exact = search.best(states, 10, NOTHING)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        coarse = search.best(states, 10, NOTHING)
    finally:
        torch.set_float32_matmul_precision(before)
    assert exact is not None
    assert coarse is not None
    assert torch.equal(exact[1], coarse[1])
    assert torch.equal(exact[0], coarse[0])


def test_too_many_equal_items_are_left_to_others(rounded: bool) -> None:
    assert rounded in {True, False}
    assert ProductSearch(torch.ones(100_000, 4)).best(torch.ones(2, 4), 1, NOTHING) is None


def test_a_user_with_many_equal_items_takes_no_memory_of_others(rounded: bool) -> None:
    """Half of the items are as good as the best for one of the users."""
    assert rounded in {True, False}
    torch.manual_seed(0)
    vectors = torch.randn(20_000, 8)
    vectors[::2] = 5.0
    states = torch.cat([torch.ones(1, 8), torch.randn(63, 8)])
    assert ProductSearch(vectors).best(states, 10, NOTHING) is None
    states[0] = 0.0
    assert ProductSearch(vectors).best(states, 10, NOTHING) is None


def test_numbers_that_are_not_finite_are_left_to_others(rounded: bool) -> None:
    assert rounded in {True, False}
    vectors = torch.ones(100, 4)
    search = ProductSearch(vectors)
    for number in (torch.nan, torch.inf):
        assert search.best(torch.tensor([[1.0, 1, 1, number]]), 1, NOTHING) is None
    vectors[7, 2] = torch.nan
    assert ProductSearch(vectors).best(torch.ones(1, 4), 1, NOTHING) is None


@pytest.mark.parametrize(("bf16", "taken"), [(0.5, True), (0.95, False), (2.0, False)])
def test_the_faster_precision_is_measured(
    bf16: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 is taken where it is clearly faster, and float32 where chance might decide."""
    monkeypatch.setattr(product_search, "median_share", lambda *_, **__: bf16)
    assert bf16_is_faster(torch.randn(1_000, 8)) is taken


def test_bf16_is_timed_against_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each product is made in its own precision, bf16 first."""
    types: list[torch.dtype] = []
    product = torch.Tensor.__matmul__

    def record(one: Tensor, other: Tensor) -> Tensor:
        types.append(one.dtype)
        return product(one, other)

    monkeypatch.setattr(torch.Tensor, "__matmul__", record)
    bf16_is_faster(torch.randn(1_000, 8))
    # Fewer where bf16 is emulated: what is much slower is not timed for long.
    assert types in ([torch.bfloat16, torch.float32] * 3, [torch.bfloat16, torch.float32] * 6)
