"""The costs of training steps: the seconds of their parts, tokens per second, MFU, peak memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from recsys.config import Experiment
from recsys.data.batches import SequenceBatch
from recsys.data.histories import Histories
from recsys.data.sharded_batches import Batches
from recsys.inference.catalogue import Catalogue
from recsys.process_memory import keep_freed_memory, peak_memory_mib, reset_peak_memory
from recsys.training.cost import StepMeter, matrix_speed
from recsys.training.device import training_device
from recsys.training.loop import build_batches, new_module
from recsys.training.precision import Precision, product_dtype, settle_precision
from recsys.training.schedule import Schedule

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
    dtype = product_dtype(precision)
    module = module.to(device)
    configured: Any = module.configure_optimizers()
    optimizer = configured["optimizer"]
    stream = _endless(batches)
    meter = StepMeter(counts=False)

    def lap(part: str) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        meter.lap(part)

    def step() -> SequenceBatch:
        meter.start()
        batch: SequenceBatch = module.transfer_batch_to_device(next(stream), device, 0)
        lap("data")
        with torch.autocast(device.type, dtype, enabled=dtype == torch.bfloat16):
            history, seen = module.teacher_forced(batch)
            lap("encoder")
            loss = module.loss(history, batch.targets, seen)
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
    meter.take()
    reset_peak_memory()
    tokens = sum(int(step().lengths.sum()) for _ in range(steps))
    seconds = {part: total / steps for part, total in meter.take().items()}
    total = sum(seconds.values())
    return StepCosts(
        seconds=seconds,
        tokens_per_second=tokens / steps / total,
        peak_share=flops / total / matrix_speed(device.type, dtype),
        precision=precision,
        memory_mib=peak_memory_mib(),
    )


def _endless(batches: Batches) -> Iterator[SequenceBatch]:
    while True:
        yield from batches
