"""Facts about a log and a machine, from which the first settings follow."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset

SEQUENCE_NUMBER_STEPS = 3
"""Times whose differences within a user take at most this many values are sequence numbers, not
times."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the training part of a log looks like. Nothing here reads a held-out purchase."""

    users: int
    """Users with at least two interactions, of which a model can learn."""
    items: int
    """Size of the catalogue."""
    interactions: int
    median_length: float
    """Median number of interactions of those users."""
    long_length: float
    """The 98th percentile of that number."""
    repeat_share: float
    """Share of a user's interactions, the first excepted, with an item that the user had before."""
    tie_share: float
    """Share of consecutive interactions of a user at the same time: baskets."""
    has_times: bool
    """Whether the times are more than sequence numbers."""

    @property
    def interactions_per_item(self) -> float:
        """Mean number of interactions of an item."""
        return self.interactions / max(self.items, 1)

    @classmethod
    def of(cls, dataset: PreparedDataset) -> LogFacts:
        """Read the facts from the training part of a prepared dataset."""
        histories = dataset.histories("valid")
        lengths = histories.lengths
        learnable = lengths[lengths >= 2]
        steps = _steps(histories)
        return cls(
            users=len(learnable),
            items=dataset.num_items,
            interactions=len(histories.items),
            median_length=float(np.median(learnable)) if len(learnable) else 0.0,
            long_length=float(np.percentile(learnable, 98)) if len(learnable) else 0.0,
            repeat_share=_repeat_share(histories),
            tie_share=float((steps == 0).mean()) if len(steps) else 0.0,
            has_times=pl.Series(steps).n_unique() > SEQUENCE_NUMBER_STEPS,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine offers to a training."""

    cores: int
    memory_gib: float
    """Memory that is free now, in GiB."""
    gpu: str | None
    """Name of the GPU, if there is one."""

    @classmethod
    def here(cls) -> Machine:
        """Describe this machine."""
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
        return cls(_usable_cores(), free, gpu)

    def __str__(self) -> str:
        """Return one line for people."""
        processor = f"{self.cores} core{'s' * (self.cores > 1)}"
        return f"{self.gpu or processor}, {self.memory_gib:.0f} GiB of memory free"


def _usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _steps(histories: Histories) -> NDArray[np.int64]:
    """Return the time from each interaction of a user to the next one; empty without times."""
    if histories.times is None or len(histories.times) < 2:
        return np.empty(0, dtype=np.int64)
    users = histories.users
    steps: NDArray[np.int64] = np.diff(histories.times)[users[1:] == users[:-1]]
    return steps


def _repeat_share(histories: Histories) -> float:
    """Return the share of interactions after a user's first with an item the user had before."""
    later = len(histories.items) - np.count_nonzero(histories.lengths)
    if not later:
        return 0.0
    pairs = pl.DataFrame({"user": histories.users, "item": histories.items}).n_unique()
    return float((len(histories.items) - pairs) / later)
