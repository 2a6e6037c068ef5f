"""Profile of training steps: where the time goes, and how much of the hardware is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from recsys.config import Experiment
from recsys.data.histories import Histories
from recsys.data.sequence_batch import SequenceBatch
from recsys.data.sharded_batches import Batches
from recsys.inference.catalogue import Catalogue
from recsys.process_memory import keep_freed_memory, peak_memory_mib, reset_peak_memory
from recsys.training.cost import StepMeter, matrix_speed
from recsys.training.device import gpus, training_device
from recsys.training.loop import build_batches, new_module
from recsys.training.precision import Precision, product_dtype, settle_precision
from recsys.training.schedule import Schedule

_WARM_UP = 2
"""Number of steps that compile kernels and fill caches; they are not measured."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Means over the measured steps."""

    seconds: dict[str, float]
    """Seconds per step of each part: data, encoder (embedding and encoder, forward), loss (head and
    loss, with their gradients), backward (of the encoder), optimiser."""
    tokens_per_second: float
    """Tokens without padding per second."""
    padding_share: float
    """Share of padding among the tokens that the encoder read."""
    gigaflops: float
    """Billions of floating-point operations in the matrix products of a step."""
    peak_share: float
    """Speed of a step as a share of that of one large matrix product in the same precision."""
    precision: Precision
    memory_mib: dict[str, float]

    def summary(self) -> dict[str, float | str]:
        """Return all but the times of the parts, by name."""
        return {
            "precision": self.precision,
            "seconds_per_step": sum(self.seconds.values()),
            "tokens_per_second": self.tokens_per_second,
            "padding_share": self.padding_share,
            "gigaflop_per_step": self.gigaflops,
            "share_of_matrix_peak": self.peak_share,
            **self.memory_mib,
        }


def profile(
    experiment: Experiment, catalogue: Catalogue, histories: Histories, steps: int
) -> Profile:
    """Train a new model for a few steps and measure them.

    Args:
        experiment: model and training.
        catalogue: the items.
        histories: the histories to train on.
        steps: number of measured steps, after two warm-up steps.

    Raises:
        InputError: no history has two items.
    """
    with torch.random.fork_rng(gpus()):
        torch.manual_seed(experiment.seed)
        return _measure(experiment, catalogue, histories, steps)


def _measure(
    experiment: Experiment, catalogue: Catalogue, histories: Histories, steps: int
) -> Profile:
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
    gpu = device.type == "cuda"
    meter = StepMeter(counts=False, wait=torch.cuda.synchronize if gpu else lambda: None)

    def step() -> SequenceBatch:
        meter.start()
        batch = module.transfer_batch_to_device(next(stream), device, 0)
        meter.lap("data")
        with torch.autocast(device.type, dtype, enabled=dtype == torch.bfloat16):
            history, seen = module.teacher_forced(batch)
            meter.lap("encoder")
            loss: Tensor = module.loss(history, batch.targets, seen)
            meter.lap("loss")
        loss.backward()
        meter.lap("backward")
        optimizer.step()
        optimizer.zero_grad()
        meter.lap("optimiser")
        return batch  # type: ignore[no-any-return]

    with FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    for _ in range(_WARM_UP):
        step()
    meter.take()
    reset_peak_memory()
    measured = [step() for _ in range(steps)]
    seconds = {name: total / steps for name, total in meter.take().items()}
    real = sum(int(batch.lengths.sum()) for batch in measured)
    total = sum(seconds.values())
    return Profile(
        seconds=seconds,
        tokens_per_second=real / steps / total,
        padding_share=1 - real / sum(batch.items.numel() for batch in measured),
        gigaflops=flops / 1e9,
        peak_share=flops / total / matrix_speed(device.type, dtype),
        precision=precision,
        memory_mib=peak_memory_mib(),
    )


def _endless(batches: Batches) -> Iterator[SequenceBatch]:
    while True:
        yield from batches
