"""HSTU blocks against the published formula in loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from recsys.model.encoder import TimesRead
from recsys.model.hstu import HSTUBlock, HSTUEncoder, time_buckets
from tests.helpers.random_models import drawn


@torch.no_grad()
def published_block(block: HSTUBlock, x: Tensor, gaps: list[list[int]] | None) -> Tensor:
    """States [L, D] of a sequence [L, D]; gaps [L][L] between scoring times and item times."""
    length, dim = x.shape
    width = dim // block.num_heads
    projected = F.layer_norm(x, (dim,), eps=1e-6) @ block.gate_value_query_key.weight.T
    u, v, q, k = F.silu(projected).split(dim, dim=1)
    attended = torch.zeros_like(x)
    for t in range(length):
        for j in range(t + 1):
            bias = block.position_bias[t - j]
            if gaps is not None and block.time_bias is not None:
                bias = bias + block.time_bias[min(int(math.log(max(gaps[t][j], 1)) / 0.301), 128)]
            for head in range(block.num_heads):
                own = slice(head * width, (head + 1) * width)
                weight = F.silu(q[t, own] @ k[j, own] + bias) / block.max_length
                attended[t, own] += weight * v[j, own]
    gated = F.layer_norm(attended, (dim,), eps=1e-6) * u
    return block.output(gated) + x


@pytest.mark.parametrize("timed", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    heads=st.sampled_from([1, 2, 3]),
    pauses=st.lists(st.integers(0, 10**9), min_size=1, max_size=6),
)
def test_the_block_is_the_published_one(
    timed: bool, seed: int, heads: int, pauses: list[int]
) -> None:
    torch.manual_seed(seed)
    block = drawn(HSTUBlock(6, heads, 7, 0.0, timed=timed).double(), 0.8)
    length = len(pauses)
    x = torch.randn(2, length, 6, dtype=torch.float64)
    times = [sum(pauses[: place + 1]) for place in range(length)]
    gaps = [[request - item for item in times] for request in times]
    buckets = time_buckets(torch.tensor(gaps)).expand(2, -1, -1)
    found = block(x, buckets if timed else None)
    for row in range(2):
        expected = published_block(block, x[row], gaps if timed else None)
        assert torch.allclose(found[row], expected, rtol=0, atol=1e-9)


def encoder(times: TimesRead) -> HSTUEncoder:
    torch.manual_seed(2)
    blocks = [HSTUBlock(4, 1, 9, 0.0, timed=times != "none") for _ in range(2)]
    return drawn(HSTUEncoder(None, blocks, 4, 0.0, times=times).double(), 1)


def test_which_times_are_read() -> None:
    embedded, lengths = torch.randn(1, 3, 4, dtype=torch.float64), torch.tensor([3])
    base = torch.tensor([[100, 200, 900, 5_000]])
    later_request = torch.tensor([[100, 200, 900, 900_000]])
    other_past = torch.tensor([[100, 800, 900, 5_000]])

    def same(times: TimesRead, changed: Tensor) -> bool:
        stack = encoder(times)
        one, other = stack(embedded, lengths, base), stack(embedded, lengths, changed)
        return torch.allclose(one, other, rtol=0, atol=1e-12)

    timed: list[TimesRead] = ["past", "request"]
    for times in timed:
        assert same(times, base + 12_345_678_901)
        assert not same(times, other_past)
    assert same("past", later_request)
    assert not same("request", later_request)
    assert same("none", other_past)
    for times in timed:
        with pytest.raises(ValueError, match="reads times, and there are none"):
            encoder(times)(embedded, lengths)
