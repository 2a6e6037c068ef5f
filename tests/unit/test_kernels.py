"""The kernels against their plain definitions, values and gradients.

On a GPU where there is one, and in Triton's interpreter, which must be on before triton is
imported: for that test_kernel_compilation.py runs this file in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config import Experiment, parse_experiment
from recsys.model.build import build_model
from recsys.model.decayed_attention import add_averages, add_sums
from recsys.model.target_attention import TargetAttentionHead
from recsys.training import kernel_choice
from recsys.training.module import TrainingModule
from recsys.training.schedule import Schedule

pytest.importorskip("triton", reason="triton is not installed: torch's CUDA builds bring it")

from triton.language import bfloat16, float32
from triton.runtime import interpreter  # of whose names only a run without a GPU needs some

from recsys.kernels import softmax
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
    plain = interpreter.InterpreterBuilder.create_dot

    def widened(side: Any) -> Any:
        if side.dtype.scalar != bfloat16:
            return side
        wide = interpreter._convert_float(side.data, bfloat16, float32, None)
        return interpreter.TensorHandle(wide.view("f4"), float32)

    def create_dot(self: Any, one: Any, other: Any, *rest: Any) -> Any:
        return plain(self, widened(one), widened(other), *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


def attended_as_defined(average: bool) -> Attend:
    """The formulas of `decayed_attention`, pair by pair of a position and an earlier one."""

    def attend(
        scores: Tensor,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        value_queries: Tensor,
        decay: Tensor,
    ) -> Tensor:
        step = torch.arange(keys.shape[1], device=keys.device)
        age = step[:, None] - step  # [t, j]
        recency = torch.exp(-decay * age).masked_fill(age < 0, 0)
        logits = torch.einsum("cd,bjd->cbj", queries, keys)
        value_scores = torch.einsum("cd,bjd->cbj", value_queries, values)
        weights = recency * logits.exp()[:, :, None]
        total = (weights if average else recency).sum(dim=-1)
        return scores + ((weights * value_scores[:, :, None]).sum(dim=-1) / total).flatten(1)

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
    keys, _, queries, _ = sides
    generator = torch.Generator().manual_seed(1)
    shape = len(queries), keys[..., 0].numel()
    scores, upstream = (torch.randn(shape, generator=generator).to(keys) for _ in range(2))
    scores.requires_grad_()
    attended = function(scores.clone(), *sides, torch.tensor(decay, device=keys.device))
    return [attended, *torch.autograd.grad(attended, [scores, *sides], upstream)]


@pytest.mark.parametrize(
    ("shape", "decay"),
    [
        ((70, 2, 50, 24), 0.1),  # nothing is a multiple of its block
        ((1, 1, 1, 16), 0.0),  # one candidate, one position: no decay matters
        ((64, 1, 96, 64), 0.01),  # everything is; a carry over three blocks
        ((5, 2, 17, 128), 2.0),
        ((130, 1, 33, 6), 0.7),  # two blocks of candidates, narrower than tensor cores
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
def test_fused_attention_is_its_definition(
    device: str, average: bool, dtype: torch.dtype, shape: tuple[int, int, int, int], decay: float
) -> None:
    """In float32 to its rounding, on a GPU to that of three products of tensor cores (tf32x3); in
    bf16 as close as the functions in torch."""
    fused, in_torch = (fused_averages, add_averages) if average else (fused_sums, add_sums)
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
    allowed = {"cpu": 2e-6, "cuda": 1e-5}[device] if dtype == torch.float32 else 1e-2
    for one, other in zip(differs, torch_differs, strict=True):
        assert one <= max(allowed, 4 * other)


def test_fused_attention_reads_slices_and_mixed_dtypes(device: str) -> None:
    """Keys of one attention head are a slice of those of all; under autocast queries are bf16."""
    keys, values, queries, value_queries = attention_inputs((9, 2, 20, 16), torch.float32, device)
    many = torch.stack([values, keys], dim=2).detach()  # [B, L, 2, d]
    sides = (many[:, :, 1], many[:, :, 0], queries, value_queries)
    decay = torch.tensor(0.2, device=device)
    zeros = partial(torch.zeros, 9, 40, device=device)
    found = fused_sums(zeros(), *sides, decay)
    assert torch.equal(found, fused_sums(zeros(), keys, values, queries, value_queries, decay))
    mixed = fused_sums(zeros(), keys.bfloat16(), values.bfloat16(), queries, value_queries, decay)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, found, rtol=0.05, atol=0.05)


def test_wide_attention_heads_are_refused(device: str) -> None:
    sides = attention_inputs((2, 1, 3, MAX_DIM + 1), torch.float32, device)
    sides.append(torch.tensor(0.1, device=device))
    with pytest.raises(ValueError, match="head_dim is at most 128, not 129"):
        fused_averages(torch.zeros(2, 3), *sides)


# --- Softmax -------------------------------------------------------------------------------------


def softmax_as_defined(
    logits: Tensor, targets: Tensor, excluded: Tensor | None, smoothing: float, width: int
) -> tuple[Tensor, Tensor]:
    """Position by position, over the items that are left."""
    logits = logits.double().requires_grad_()
    total = 0 * logits.nan_to_num().sum()
    for row, target in enumerate(targets.flatten().tolist()):
        if target:
            gone = set() if excluded is None else set(excluded.flatten(0, 1)[row].tolist())
            left = [item for item in range(1, width) if item == target or item not in gone]
            total = total + F.cross_entropy(
                logits.flatten(0, 1)[row, left],
                torch.tensor(left.index(target), device=logits.device),
                label_smoothing=smoothing,
            )
    return total.detach(), torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("by_position", [True, False], ids=["items together", "positions together"])
@pytest.mark.parametrize(
    ("shape", "width", "excludes", "smoothing"),
    [
        ((3, 5, 40), 33, True, 0.0),  # columns beyond the items, as `aligned` appends them
        ((3, 5, 40), 33, True, 0.2),
        ((1, 1, 2), 2, False, 0.1),  # one item
        ((70, 1, 100), 100, False, 0.0),  # two blocks of positions
        ((1, 3, 9000), 8999, True, 0.1),  # items split over programs, the last of another size
    ],
)
def test_softmax_is_its_definition(
    device: str,
    shape: tuple[int, int, int],
    width: int,
    excludes: bool,
    smoothing: float,
    by_position: bool,
) -> None:
    """Targets among the excluded items, positions without a target, and NaN where no item is."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(shape, generator=generator)
    logits[..., 0], logits[..., width:] = torch.nan, torch.nan
    targets = torch.randint(1, width, shape[:2], generator=generator)
    targets.flatten()[1::4] = 0
    excluded = torch.randint(0, width, (*shape[:2], 7), generator=generator)
    excluded[..., 3] = targets
    found = logits if by_position else logits.flatten(0, 1).T.contiguous().T.view(shape)
    arguments = targets.to(device), excluded.to(device) if excludes else None, smoothing, width
    loss, gradient = softmax.softmax_gradient(found.to(device).clone(), *arguments)
    expected_loss, expected = softmax_as_defined(logits.to(device), *arguments)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-6, abs=1e-6)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("programs", [1, 5, 8])
def test_softmax_in_parts_of_several_tiles(
    device: str, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two positions and five tiles of items: in one part, in parts of two, in parts of one."""
    monkeypatch.setattr(softmax, "_PROGRAMS", programs)
    logits = torch.randn(1, 2, 20_000, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[19_999, 4096]], device=device)
    logits = logits.to(device)
    loss, gradient = softmax.softmax_gradient(logits.clone(), targets, None, 0.1)
    expected_loss, expected = softmax_as_defined(logits, targets, None, 0.1, 20_000)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-6)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-7)


def test_softmax_of_bf16_is_computed_in_float32(device: str) -> None:
    """And written into the logits, rounded once."""
    logits = 5 * torch.randn(2, 9, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.arange(18).view(2, 9)
    given = logits.to(device, copy=True)
    loss, gradient = softmax.softmax_gradient(given, targets.to(device), None, 0.1)
    expected_loss, expected = softmax_as_defined(logits, targets, None, 0.1, 50)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-6)
    assert gradient.data_ptr() == given.data_ptr()
    torch.testing.assert_close(gradient.cpu(), expected.bfloat16(), rtol=0.01, atol=1e-6)


def test_softmax_where_all_other_items_are_excluded(device: str) -> None:
    logits = torch.tensor([[[5.0, 1.0, 2.0, 3.0], [5.0, 1.0, 2.0, 3.0]]], device=device)
    excluded = torch.tensor([[[1, 2, 3], [1, 2, 3]]], device=device)
    targets = torch.tensor([[2, 0]], device=device)
    loss, gradient = softmax.softmax_gradient(logits, targets, excluded, 0.0)
    assert loss.item() == 0
    assert not gradient.any()


def test_a_loss_is_as_large_as_in_torch_at_most(device: str) -> None:
    logits = torch.tensor([[[0.0, 200.0, 0.0]]], device=device)
    targets = torch.tensor([[2]], device=device)
    loss, _ = softmax.softmax_gradient(logits, targets, None, 0.0)
    assert loss.item() == pytest.approx(69.0776, abs=1e-3)


# --- In a training -------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["dot_product", "average", "sum"])
def test_a_training_takes_kernels_and_has_the_same_gradients(
    device: str, head: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The trial finds that they are right; without a GPU they are slow, so the clock is not."""
    monkeypatch.setattr(kernel_choice, "_shares", {})
    monkeypatch.setattr(kernel_choice, "median_share", lambda *_: 0.5)
    caplog.set_level("DEBUG", logger="recsys")
    kind: dict[str, Any] = {"kind": "dot_product"}
    if head != "dot_product":
        kind = {"kind": "target_attention", "pooling": head, "half_life": 4.0}
    module, experiment = training_module(kind)
    module.to(device)
    model = module.model
    assert isinstance(model.head, nn.Module)
    weights = list(model.head.parameters())
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(4, 10, 16, generator=generator).to(device).requires_grad_()
    targets, seen = torch.randint(0, 60, (2, 4, 10), generator=generator).to(device)

    def gradients() -> list[Tensor]:
        loss = module.loss(model.head.represent_history(states, states), targets, seen)
        leaves = [states, model.items.weight, *weights]
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    in_torch = gradients()
    before = torch.random.get_rng_state()
    choice = kernel_choice.KernelChoice(module, experiment, torch.float32)
    choice.choose()
    assert torch.equal(torch.random.get_rng_state(), before)
    expected = ["softmax: a Triton kernel: the kernel took 0.50 of torch's time"]
    if head != "dot_product":
        expected.insert(0, "target attention" + expected[0].removeprefix("softmax"))
    assert caplog.messages == expected
    # To the rounding of their largest elements: tensor cores do float32 as three products (tf32x3).
    for one, other in zip(gradients(), in_torch, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm()
    choice.on_exception()
    if head != "dot_product":
        in_torch_again = add_averages if head == "average" else add_sums
        assert vars(model.head)["attend"].func is in_torch_again


def training_module(head: dict[str, Any]) -> tuple[TrainingModule, Experiment]:
    """Of 59 items; the value queries are not zero, as they are at the start of a training."""
    tree = {
        "model": {"embedding_dim": 16, "num_heads": 2, "max_sequence_length": 10, "head": head},
        "training": {
            "max_epochs": 1,
            "learning_rate": 1e-3,
            "batch_tokens": 60,
            "label_smoothing": 0.1,
        },
        "evaluation": {"seen": "filter", "cutoffs": [10]},
    }
    experiment = parse_experiment(tree)
    torch.manual_seed(0)
    model = build_model(experiment.model, 59)
    if isinstance(model.head, TargetAttentionHead):
        torch.nn.init.normal_(model.head.value_query.weight)
    schedule = Schedule.plan(experiment.training, 1, 1)
    module = TrainingModule(model, experiment.training, schedule, torch.ones(60), exclude_seen=True)
    return module.eval(), experiment  # without dropout
