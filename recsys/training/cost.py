"""Cost of training steps: the seconds of their parts and their floating-point operations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode


class StepMeter:
    """A stopwatch for the parts of a step.

    A GPU runs asynchronously: only the time of launching its work is measured.

    Args:
        counts: whether to count the operations of the first step. Counting changes how they are
            computed, and with it the last bits of the result: a resumed training must not count
            where the uninterrupted one did not.
    """

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts
        self.seconds: dict[str, float] = {}
        """Seconds of each part since the last `take`."""
        self.operations_per_token: float | None = None
        """Operations of the matrix products per token; None if they were not counted."""
        self._last = time.perf_counter()

    def start(self) -> None:
        """Restart the clock; the time until now belongs to no step."""
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Add the time since the last call to this part of a step."""
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """Return the seconds of each part and reset them."""
        taken, self.seconds = self.seconds, {}
        return taken

    @contextmanager
    def counting(self, lengths: Tensor) -> Iterator[None]:
        """Count the operations of a step on sequences of these lengths, if it is the first step."""
        if not self._counts:
            yield
            return
        self._counts = False
        with FlopCounterMode(display=False) as counter:
            yield
        self.operations_per_token = counter.get_total_flops() / max(int(lengths.sum()), 1)


_LARGEST = {"cuda": 8192}
"""Rows of the matrices of `matrix_speed`, by the type of the device: so many that the start of a
product and the wait for it are no part of its time."""
_LONG, _SECONDS, _TIMES = 0.05, 0.5, 6
"""A product that takes so many seconds needs no larger one; how long and how often one is timed."""


@lru_cache
def matrix_speed(device: str, dtype: torch.dtype) -> float:
    """Measure the operations per second of a large matrix product: the best of several runs.

    A processor that emulates the type takes minutes for what others do in a blink: products grow
    from small ones.
    """

    def seconds(one: Tensor) -> float:
        started = time.perf_counter()
        one @ one
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    largest = _LARGEST.get(device, 2048)
    # Not random: the random state stays as it is.
    one = torch.ones(256, 256, device=device, dtype=dtype)
    seconds(one)  # the first call prepares
    while (best := seconds(one)) < _LONG and len(one) < largest:
        one = one.repeat(2, 2)
    until = time.perf_counter() + _SECONDS
    for _ in range(_TIMES):
        best = min(best, seconds(one))
        if time.perf_counter() > until:
            break
    return float(2 * len(one) ** 3 / best)
