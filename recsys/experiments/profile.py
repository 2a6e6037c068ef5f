"""Where the time of a training step goes, and how much of the machine it uses."""

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
from recsys.training.cost import StepMeter, matrix_speed
from recsys.training.loop import epochs_of, new_module
from recsys.training.module import Schedule
from recsys.training.optimiser import clip_gradients
from recsys.training.precision import choose_precision, working_dtype
from recsys.training.process_memory import forget_peak, keep_freed_memory, peak_memory_mib

_WARM_UP = 2
"""Steps that compile kernels and fill caches; not counted."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Means over the steps that were watched."""

    seconds: dict[str, float]
    """Per step: data, encoder (embedding and encoder, forward), loss (head and loss: its gradients
    are found here too), backward (the encoder's), optimiser."""
    tokens_per_second: float
    """Real tokens."""
    padding_share: float
    """Of the tokens that went through the encoder."""
    gigaflops: float
    """Of the matrix products of a step."""
    peak_share: float
    """Of the speed of one large matrix product here, in the same precision, that a step reaches."""
    precision: str
    memory_mib: dict[str, float]

    def summary(self) -> dict[str, float | str]:
        """All but the times, by name."""
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
    """Train a fresh model for a few steps and watch.

    Args:
        experiment: model and training.
        catalogue: the items.
        histories: what is learned from.
        steps: that are watched, after two to warm up.

    Raises:
        InputError: no history has two items.
    """
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        return _watch(experiment, catalogue, histories, steps)


def _watch(
    experiment: Experiment, catalogue: Catalogue, histories: Histories, steps: int
) -> Profile:
    keep_freed_memory()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = experiment.training
    precision, _ = choose_precision(config.precision)
    dtype = working_dtype(config.precision)
    batches = epochs_of(experiment, histories)
    schedule = Schedule.plan(config, config.max_epochs, len(batches))
    module = new_module(experiment, catalogue, histories, schedule).to(device)
    configured: Any = module.configure_optimizers()
    optimizer = configured["optimizer"]
    stream = _endless(batches)
    gpu = device.type == "cuda"
    meter = StepMeter(counts=False, wait=torch.cuda.synchronize if gpu else lambda: None)
    forget_peak()

    def step() -> SequenceBatch:
        meter.start()
        batch = module.transfer_batch_to_device(next(stream), device, 0)
        meter.lap("data")
        with torch.autocast(device.type, dtype, enabled=dtype == torch.bfloat16):
            history, had = module.teacher_forced(batch)
            meter.lap("encoder")
            loss: Tensor = module.loss(history, batch.targets, had)
            meter.lap("loss")
        loss.backward()
        meter.lap("backward")
        clip_gradients(module.model.parameters(), config.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        meter.lap("optimiser")
        return batch  # type: ignore[no-any-return]

    for _ in range(_WARM_UP):
        step()
    meter.take()
    seen = [step() for _ in range(steps)]
    seconds = {name: total / steps for name, total in meter.take().items()}
    with FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    real = sum(int(batch.lengths.sum()) for batch in seen)
    total = sum(seconds.values())
    return Profile(
        seconds=seconds,
        tokens_per_second=real / steps / total,
        padding_share=1 - real / sum(batch.items.numel() for batch in seen),
        gigaflops=flops / 1e9,
        peak_share=flops / total / matrix_speed(device.type, dtype),
        precision=precision,
        memory_mib=peak_memory_mib(),
    )


def _endless(batches: Batches) -> Iterator[SequenceBatch]:
    while True:
        yield from batches
