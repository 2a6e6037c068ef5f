"""The kernels against their plain definitions, values and gradients.

On a GPU where there is one, and in Triton's interpreter, which must be on before triton is
imported: for that test_kernel_compilation.py runs this file in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.model.decayed_attention import averages_at_all_positions, sums_at_all_positions

pytest.importorskip("triton", reason="triton is not installed: torch's CUDA builds bring it")

from triton.language import bfloat16, float32
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _convert_float

from recsys.kernels.decayed_attention import MAX_DIM, fused_averages, fused_sums

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
Attend = Callable[..., Tensor]


@pytest.fixture(
    params=[
        pytest.param(
            "cpu",
            marks=pytest.mark.skipif(
                not INTERPRETED, reason="test_kernel_compilation.py runs it in the interpreter"
            ),
        ),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(
                    INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device"
                ),
            ],
        ),
    ]
)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if INTERPRETED:
        multiply_bf16(monkeypatch)
    return str(request.param)


def multiply_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.7's interpreter keeps bf16 as its bits, and multiplies these."""
    plain = InterpreterBuilder.create_dot

    def widened(side: Any) -> Any:
        if side.dtype.scalar != bfloat16:
            return side
        return TensorHandle(_convert_float(side.data, bfloat16, float32, None).view("f4"), float32)

    def create_dot(self: Any, one: Any, other: Any, *rest: Any) -> Any:
        return plain(self, widened(one), widened(other), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def attended_as_defined(average: bool) -> Attend:
    """The formulas of `decayed_attention`, pair by pair of a position and an earlier one."""

    def attend(
        keys: Tensor, values: Tensor, queries: Tensor, value_queries: Tensor, decay: Tensor
    ) -> Tensor:
        step = torch.arange(keys.shape[1], device=keys.device)
        age = step[:, None] - step  # [t, j]
        recency = torch.exp(-decay * age).masked_fill(age < 0, 0)
        logits = torch.einsum("cd,bjd->cbj", queries, keys)
        value_scores = torch.einsum("cd,bjd->cbj", value_queries, values)
        weights = recency * logits.exp()[:, :, None]
        total = (weights if average else recency).sum(dim=-1)
        return ((weights * value_scores[:, :, None]).sum(dim=-1) / total).flatten(1)

    return attend


def attention_inputs(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: str
) -> list[Tensor]:
    """Keys, values, queries and value queries, as `TargetAttentionHead` makes them."""
    candidates, batch, length, dim = shape
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(batch, length, dim, generator=generator) for _ in range(2))
    queries, value_queries = (torch.randn(candidates, dim, generator=generator) for _ in range(2))
    sides = F.normalize(keys, dim=-1), values, 3 * F.normalize(queries, dim=-1), value_queries
    return [side.to(device, dtype).requires_grad_() for side in sides]


def with_gradients(function: Attend, sides: list[Tensor], decay: float) -> list[Tensor]:
    attended = function(*sides, torch.tensor(decay, device=sides[0].device))
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(attended.shape, generator=generator).to(attended)
    return [attended, *torch.autograd.grad(attended, sides, upstream)]


@pytest.mark.parametrize(
    ("shape", "decay"),
    [
        ((70, 3, 50, 24), 0.1),  # nothing is a multiple of its block
        ((1, 1, 1, 16), 0.0),  # one candidate, one position: no decay matters
        ((64, 2, 96, 64), 0.01),  # everything is
        ((5, 2, 17, 128), 2.0),
        ((130, 1, 33, 6), 0.7),  # two blocks of candidates, narrower than tensor cores
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
def test_fused_attention_is_its_definition(
    device: str, average: bool, dtype: torch.dtype, shape: tuple[int, int, int, int], decay: float
) -> None:
    """In float32 to its rounding, in bf16 as close as the functions in torch."""
    fused, in_torch = (
        (fused_averages, averages_at_all_positions)
        if average
        else (fused_sums, sums_at_all_positions)
    )
    sides = attention_inputs(shape, dtype, device)
    exact = [side.detach().double().requires_grad_() for side in sides]
    expected = with_gradients(attended_as_defined(average), exact, decay)
    torch_differs, differs = (
        [
            ((one.double() - other).norm() / other.norm().clamp(min=1)).item()
            for one, other in zip(with_gradients(function, sides, decay), expected, strict=True)
        ]
        for function in (in_torch, fused)
    )
    allowed = 2e-6 if dtype == torch.float32 else 1e-2
    for one, other in zip(differs, torch_differs, strict=True):
        assert one <= max(allowed, 4 * other)


def test_fused_attention_reads_slices_and_mixed_dtypes(device: str) -> None:
    """Keys of one attention head are a slice of those of all; under autocast queries are bf16."""
    keys, values, queries, value_queries = attention_inputs((9, 2, 20, 16), torch.float32, device)
    many = torch.stack([values, keys], dim=2).detach()  # [B, L, 2, d]
    sides = (many[:, :, 1], many[:, :, 0], queries, value_queries)
    decay = torch.tensor(0.2, device=device)
    found = fused_sums(*sides, decay)
    assert torch.equal(found, fused_sums(keys, values, queries, value_queries, decay))
    mixed = fused_sums(keys.bfloat16(), values.bfloat16(), queries, value_queries, decay)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, found, rtol=0.05, atol=0.05)


def test_wide_attention_heads_are_refused(device: str) -> None:
    sides = attention_inputs((2, 1, 3, MAX_DIM + 1), torch.float32, device)
    sides.append(torch.tensor(0.1, device=device))
    with pytest.raises(ValueError, match="head_dim is at most 128, not 129"):
        fused_averages(*sides)
