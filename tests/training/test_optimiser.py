"""The row-wise optimiser, against those of torch, and the schedules of the learning rate."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from recsys.config.experiment import TrainingConfig
from recsys.training.module import RowwiseAdamW, Schedule


def lookups(
    sparse: bool, rows: list[list[int]], optimizer_of: type, **settings: object
) -> nn.Embedding:
    torch.manual_seed(0)
    table = nn.Embedding(6, 3, sparse=sparse)
    optimizer = optimizer_of(table.parameters(), lr=0.1, **settings)
    for step in rows:
        table(torch.tensor(step)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return table


SETTINGS: list[dict[str, Any]] = [
    {"betas": (0.5, 0.7)},
    {"eps": 0.5},  # large, so that it shows
    {"weight_decay": 0.7},
    {"betas": (0.9, 0.98), "eps": 1e-3, "weight_decay": 0.1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_row_read_now_and_then_decays_when_it_is_read(settings: dict[str, Any]) -> None:
    """By hand: the moments wait, the number of steps is that of the table."""
    beta1, beta2 = settings.get("betas", (0.9, 0.999))
    eps, decay = settings.get("eps", 1e-8), settings.get("weight_decay", 1e-2)
    steps = [[0], [0, 2], [1], [2], [0]]
    weight = lookups(True, [], RowwiseAdamW).weight[2, 0].item()
    first = second = 0.0
    for number, read in enumerate(steps, start=1):
        if 2 not in read:
            continue
        gradient = 2 * weight
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        weight *= 1 - 0.1 * decay
        spread = math.sqrt(second / (1 - beta2**number)) + eps
        weight -= 0.1 * first / (1 - beta1**number) / spread
    ours = lookups(True, steps, RowwiseAdamW, **settings)
    assert ours.weight[2, 0].item() == pytest.approx(weight, rel=1e-5)


def test_the_config_chooses_the_schedule() -> None:
    held = Schedule.plan(TrainingConfig(warmup_steps=4, decay_fraction=0.5), 10, 20)
    assert [held(step) for step in (0, 3, 100, 150, 200)] == [0.25, 1.0, 1.0, 0.5, 0.01]
    assert Schedule.plan(TrainingConfig(), 1, 1)(0) == 1  # one step, and no room for a decay
    constant = TrainingConfig(decay_fraction=0)  # more epochs do not change the first ones
    assert {Schedule.plan(constant, epochs, 1)(7) for epochs in (8, 10_000)} == {0.08}
