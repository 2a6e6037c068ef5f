"""Cross-entropy over the catalogue: our chunks beside torch's `linear_cross_entropy`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear_cross_entropy
from turns import medians_in_turn

from recsys.machine import keep_freed_memory
from recsys.model.heads import DotProductHead
from recsys.training.losses import chunked_cross_entropy

ROUNDS = 7
SHAPES = {"ml-1m": (12_800, 128, 3_416), "amazon-beauty": (12_800, 64, 12_000)}
"""Positions, the width of the embeddings, items."""


def ways(rows: int, dim: int, items: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """The mean loss of all positions and its gradients, with no item excluded."""
    torch.manual_seed(0)
    states = torch.randn(rows, dim, dtype=dtype, requires_grad=True)
    table = torch.randn(items + 1, dim).div_(dim).to(dtype).requires_grad_()
    targets = torch.randint(1, items + 1, (rows,))
    head = DotProductHead()

    def chunks() -> Tensor:
        return chunked_cross_entropy(
            head.logits,
            head.represent_history(states[:, None], states[:, None]),
            head.represent_candidates(table),
            targets[:, None],
            None,
            chunk_rows=head.chunk_rows(1, items + 1, states.device),
        )

    options = torch.nn.LinearCrossEntropyOptions()
    losses: dict[str, Callable[[], Tensor]] = {
        "our chunks": chunks,
        "linear_cross_entropy": lambda: linear_cross_entropy(states, table, targets),
        "linear_cross_entropy in chunks": lambda: linear_cross_entropy(
            states, table, targets, options=options
        ),
    }
    return {name: partial(_backward, loss, (states, table)) for name, loss in losses.items()}


def _backward(loss: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> object:
    return torch.autograd.grad(loss(), inputs)


@pytest.mark.benchmark
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("log", SHAPES)
def test_cost_of_the_loss(log: str, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch of a log's shape, forward and backward; in turn, medians."""
    keep_freed_memory()  # as training does
    runs = ways(*SHAPES[log], dtype)
    medians = medians_in_turn(runs, ROUNDS)
    with capsys.disabled():
        for name, median in medians.items():
            print(
                f"\n{log}, {dtype}, {name}: {median:.3f} s, "
                f"{median / medians['our chunks']:.2f} x our chunks",
                end="",
            )
