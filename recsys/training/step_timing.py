"""How fast a training step is in bf16 beside float32, measured on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from recsys.config import Experiment
from recsys.data.sequence_batch import SequenceBatch
from recsys.data.sharded_batches import Batches
from recsys.training.module import TrainingModule
from recsys.training.share_cache import known_share

_TOKENS = 512
"""The positions of a timed step, at most, unless one sequence has more: enough for products as
large as those of training, and a few milliseconds."""
_SECONDS, _FEWEST = 0.2, 3
"""How long both steps are timed, and how often at least."""


def bf16_share(experiment: Experiment, module: TrainingModule, batches: Batches) -> float:
    """Return the time of a training step in bf16 as a share of that in float32, on the CPU.

    The forward and backward passes of the model over a few of its sequences are timed; what this
    machine has measured for the same shapes before is read from the cache. The weights, their
    gradients, the random state and the order of the batches stay as they are.

    Args:
        experiment: model and loss.
        module: what is to be trained, without gradients.
        batches: what it is to be trained on.
    """
    epoch = batches.epoch
    batch = next(iter(batches))
    batches.epoch = epoch
    rows, width = batch.items.shape
    few = batch.shard(0, math.ceil(rows / max(1, _TOKENS // width)))
    return known_share(
        _shapes(experiment, module.model.num_items, width), lambda: _measure(module, few)
    )


def median_share(
    one: Callable[[], None],
    other: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
    seconds: float = _SECONDS,
) -> float:
    """Return the median time of the first function as a share of that of the second.

    Both are called in turn, so that what else the machine does slows both, for so many seconds and
    three times at least; a first call of each, which may compile kernels, is not counted.
    """
    one()
    other()
    times: tuple[list[float], list[float]] = ([], [])
    started = clock()
    while len(times[0]) < _FEWEST or clock() - started < seconds:
        for function, found in zip((one, other), times, strict=True):
            begun = clock()
            function()
            found.append(clock() - begun)
    mine, others = map(statistics.median, times)
    return mine / others


def _measure(module: TrainingModule, batch: SequenceBatch) -> float:
    def step(*, bf16: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            history, seen = module.teacher_forced(batch)
            loss = module.loss(history, batch.targets, seen)
        loss.backward()
        module.zero_grad()

    with torch.random.fork_rng(devices=[]):
        return median_share(lambda: step(bf16=True), lambda: step(bf16=False))


def _shapes(experiment: Experiment, num_items: int, width: int) -> dict[str, Any]:
    """Return what decides how large the products of a step are; sizes of data by powers of two."""
    return {
        "model": experiment.model.model_dump(mode="json", exclude={"dropout"}),
        "loss": experiment.training.loss.model_dump(mode="json"),
        "items": _power_of_two(num_items),
        "width": _power_of_two(width),
    }


def _power_of_two(count: int) -> int:
    """Round up to a power of two.

    >>> [_power_of_two(count) for count in (1, 5, 8)]
    [1, 8, 8]
    """
    return 1 << (count - 1).bit_length()
