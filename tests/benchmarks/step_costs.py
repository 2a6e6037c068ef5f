"""The costs of training steps: the seconds of their parts, tokens per second, MFU, peak memory."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from recsys.config.experiment import Experiment
from recsys.data.batches import SequenceBatch, TrainingBatches
from recsys.data.histories import Histories
from recsys.inference.catalogue import Catalogue
from recsys.machine import keep_freed_memory, peak_memory_mib, reset_peak_memory
from recsys.training.device import Precision, settle_precision, training_device
from recsys.training.loop import build_batches, new_module
from recsys.training.module import Schedule

WARM_UP = 2
"""Number of steps that compile kernels and fill caches; they are not measured."""


class StepCosts(NamedTuple):
    """Means over the measured steps."""

    seconds: dict[str, float]
    """Seconds per step of each part: data, encoder (embedding and encoder, forward), loss (head and
    loss, with their gradients), backward (of the encoder), optimiser."""
    tokens_per_second: float
    """Tokens without padding per second."""
    peak_share: float
    """Speed of a step as a share of that of one large matrix product in the same precision."""
    precision: Precision
    memory_mib: dict[str, float]


def measure_steps(
    experiment: Experiment, catalogue: Catalogue, histories: Histories, steps: int
) -> StepCosts:
    """Train a new model for a few steps and measure them."""
    torch.manual_seed(experiment.seed)
    keep_freed_memory()
    device = torch.device(training_device())
    config = experiment.training
    batches = build_batches(experiment, histories)
    schedule = Schedule.plan(config, config.max_epochs, len(batches))
    module = new_module(experiment, catalogue, histories, schedule)
    precision = settle_precision(experiment)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    module = module.to(device)
    configured: Any = module.configure_optimizers()
    optimizer = configured["optimizer"]
    stream = _endless(batches)
    spent: defaultdict[str, float] = defaultdict(float)
    last = time.perf_counter()

    def lap(part: str) -> None:
        nonlocal last
        if device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        spent[part] += now - last
        last = now

    def step() -> SequenceBatch:
        nonlocal last
        last = time.perf_counter()
        batch: SequenceBatch = module.transfer_batch_to_device(next(stream), device, 0)
        lap("data")
        with torch.autocast(device.type, dtype, enabled=dtype == torch.bfloat16):
            history, seen = module.teacher_forced(batch)
            lap("encoder")
            loss = module.loss(history, seen, batch)
            lap("loss")
        loss.backward()
        lap("backward")
        optimizer.step()
        optimizer.zero_grad()
        lap("optimiser")
        return batch

    with FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    for _ in range(WARM_UP):
        step()
    spent.clear()
    reset_peak_memory()
    tokens = sum(int(step().lengths.sum()) for _ in range(steps))
    seconds = {part: total / steps for part, total in spent.items()}
    total = sum(seconds.values())
    return StepCosts(
        seconds=seconds,
        tokens_per_second=tokens / steps / total,
        peak_share=flops / total / matrix_speed(device.type, dtype),
        precision=precision,
        memory_mib=peak_memory_mib(),
    )


def _endless(batches: TrainingBatches) -> Iterator[SequenceBatch]:
    while True:
        yield from batches


def matrix_speed(device: str, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product: the best of several runs."""
    matrix = torch.ones(*[8192 if device == "cuda" else 2048] * 2, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(6):
        started = time.perf_counter()
        matrix @ matrix
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return float(2 * len(matrix) ** 3 / best)
