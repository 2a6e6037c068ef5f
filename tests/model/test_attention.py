"""Attention: against torch in values and gradients, and where nothing may be seen."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from recsys.model.attention import AdditiveAttention, attend, attention_weights, causal_mask

sizes = st.integers(1, 6)
seeds = st.integers(0, 2**16)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-10)


def same_gradients(ours: Tensor, theirs: Tensor, leaves: list[Tensor]) -> bool:
    """Whether two outputs have the same gradients, along one random direction."""
    direction = torch.randn_like(ours)
    one = torch.autograd.grad((ours * direction).sum(), leaves)
    other = torch.autograd.grad((theirs * direction).sum(), leaves)
    return all(close(a, b) for a, b in zip(one, other, strict=True))


@settings(max_examples=30, deadline=None)
@given(seeds, sizes, sizes, sizes, st.booleans(), st.booleans(), st.sampled_from([None, 1.0, 0.3]))
def test_attend_equals_torch(
    seed: int, queries: int, keys: int, dim: int, causal: bool, masked: bool, scale: float | None
) -> None:
    torch.manual_seed(seed)
    keys = queries if causal else keys
    query, key, value = normal(2, 3, queries, dim), normal(2, 3, keys, dim), normal(2, 3, keys, 4)
    mask = torch.rand(2, 1, queries, keys) < 0.6
    mask[..., 0] = True
    full_mask = mask if masked else torch.ones_like(mask)
    full_mask = full_mask & causal_mask(queries) if causal else full_mask
    theirs = F.scaled_dot_product_attention(query, key, value, full_mask, scale=scale)
    given_mask = mask if masked else None
    ours = attend(query, key, value, given_mask, causal=causal, scale=scale)
    assert close(ours, theirs)
    assert same_gradients(ours, theirs, [query, key, value])
    with torch.no_grad():
        fused = attend(query, key, value, given_mask, causal=causal, scale=scale)
        weights = attention_weights(query, key, given_mask, causal=causal, scale=scale)
    assert close(fused, theirs)
    assert close(weights @ value, theirs)
    assert not weights[~full_mask.expand_as(weights)].any()


def test_on_a_gpu_cudnn_does_not_attend(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[bool] = []
    kernel = F.scaled_dot_product_attention

    def attention(*args: Any, **options: Any) -> Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return kernel(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
    for device, expected in (("cpu", True), ("cuda", False)):
        with FakeTensorMode(), torch.no_grad():
            query = torch.empty(2, 1, 3, 4, device=device)
            assert attend(query, query, query, causal=True).shape == (2, 1, 3, 4)
        assert allowed.pop() == expected


@pytest.mark.parametrize(("sequences", "expected"), [(65_535, 1), (65_536, 0)])
def test_more_sequences_than_a_grid_of_cuda_has_are_not_for_the_fused_kernel(
    sequences: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused, plain = Mock(), MagicMock()
    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    monkeypatch.setattr("recsys.model.attention.attention_weights", plain)
    with FakeTensorMode():
        query = torch.empty(sequences, 1, 2, 4, device="cuda")
    attend(query, query, query, causal=True)
    assert (fused.call_count, plain.call_count) == (expected, 1 - expected)


def test_queries_that_see_no_key_get_zeros_and_finite_gradients() -> None:
    torch.manual_seed(0)
    query, key, value = normal(2, 4, 3), normal(2, 4, 3), normal(2, 4, 3)
    mask = torch.rand(2, 4, 4) < 0.5
    mask[0, 1] = mask[1, 0] = False
    blind = ~(mask & causal_mask(4)).any(-1)
    assert blind[0, 1]
    additive = AdditiveAttention(3, 3, 5).double()
    outputs = {
        "plain": attend(query, key, value, mask),
        "causal": attend(query, key, value, mask, causal=True),
        "additive": additive.weights(query, key, mask) @ value,
    }
    for name, found in outputs.items():
        unseeing = blind if name == "causal" else ~mask.any(-1)
        assert not found[unseeing].any(), name
        assert found[~unseeing].all(), name
        gradients = torch.autograd.grad(found.square().sum(), [query, key, value])
        assert all(gradient.isfinite().all() for gradient in gradients), name
        assert not gradients[0][unseeing].any(), name
    with torch.no_grad():
        assert close(attend(query, key, value, mask), outputs["plain"])
        fused = attend(query, key, value, mask, causal=True)
        assert close(fused, outputs["causal"])
