"""What target attention costs beside the dot product: one training step, side by side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from turns import medians_in_turn

from recsys.config import CrossEntropy, DotProduct, NextItemConfig, TargetAttention
from recsys.machine import keep_freed_memory
from recsys.model.build import build_model
from recsys.model.models import ModelInputs
from recsys.training.module import Objective

ITEMS, ROWS, LENGTH = 3_416, 64, 200
ROUNDS = 5


def step_of(head: DotProduct | TargetAttention, *, bf16: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    config = NextItemConfig(
        embedding_dim=128, feed_forward_dim=512, max_sequence_length=LENGTH, dropout=0.25, head=head
    )
    model = build_model(config, ITEMS).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    items = torch.randint(1, ITEMS + 1, (ROWS, LENGTH))
    targets = torch.randint(1, ITEMS + 1, (ROWS, LENGTH))
    lengths = torch.full((ROWS,), LENGTH)
    objective = Objective(CrossEntropy(), torch.ones(2))

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = objective(model, model(ModelInputs(items, lengths)), targets, items)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.benchmark
@pytest.mark.parametrize("bf16", [False, True])
def test_cost_of_a_training_step_by_head(bf16: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """ML-1M's shape: d 128, 2 blocks, L 200, 3,416 items, 64 sequences; medians of 5 rounds."""
    heads: dict[str, DotProduct | TargetAttention] = {
        "dot product": DotProduct(),
        "target attention, 1 head of 64": TargetAttention(num_heads=1, head_dim=64),
        "target attention, 2 heads of 32": TargetAttention(num_heads=2, head_dim=32),
        "target attention that sums up, 1 head of 64": TargetAttention(
            num_heads=1, head_dim=64, pooling="sum"
        ),
    }
    keep_freed_memory()  # as training does
    steps = {name: step_of(head, bf16=bf16) for name, head in heads.items()}
    medians = medians_in_turn(steps, ROUNDS)
    with capsys.disabled():
        for name, median in medians.items():
            print(
                f"\n{name}: {median:.3f} s, {ROWS * LENGTH / median:,.0f} tokens/s, "
                f"{median / medians['dot product']:.2f} x the dot product",
                end="",
            )
