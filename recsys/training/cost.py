"""What the steps of a training cost: the seconds of their parts, and how busy the machine was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode


class StepMeter:
    """A watch that is told when each part of a step is over.

    On a GPU, which works on by itself, it sees the time of giving the work out, unless it waits.

    Args:
        counts: whether the operations of the first step are counted. Counting changes how they are
            done, and with it the last bits of the result: a training that goes on must not count
            where the uninterrupted one did not.
        wait: called at the end of each part; returns when the device has done it.
    """

    def __init__(self, *, counts: bool, wait: Callable[[], object] = lambda: None) -> None:
        self._counts = counts
        self._wait = wait
        self.seconds: dict[str, float] = {}
        """Of each part, since they were last taken."""
        self.operations_per_token: float | None = None
        """Of the matrix products, by the step in which they were counted; None: none was."""
        self._last = time.perf_counter()

    def start(self) -> None:
        """What was done until now is not of a step."""
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """What was done since the last call was this part of a step."""
        self._wait()
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """The seconds of each part; they start from zero again."""
        taken, self.seconds = self.seconds, {}
        return taken

    @contextmanager
    def counting(self, lengths: Tensor) -> Iterator[None]:
        """Count the operations of a step on sequences of these lengths, if it is the first one."""
        if not self._counts:
            yield
            return
        self._counts = False
        with FlopCounterMode(display=False) as counter:
            yield
        self.operations_per_token = counter.get_total_flops() / max(int(lengths.sum()), 1)


@lru_cache
def matrix_speed(device: str, dtype: torch.dtype, size: int = 2048) -> float:
    """Operations per second of a large matrix product on a kind of device: the best of five."""
    one = torch.ones(size, size, device=device, dtype=dtype)  # draws no random numbers
    best = float("inf")
    for _ in range(6):
        started = time.perf_counter()
        one @ one
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return float(2 * size**3 / best)
