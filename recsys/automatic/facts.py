"""Facts about a log and a machine, from which the first settings follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.automatic.kept_columns import KeptColumn, kept_columns
from recsys.config import Feature
from recsys.data.histories import Histories
from recsys.data.memory import memory_limit
from recsys.data.prepared import PreparedDataset
from recsys.machine import usable_processors

LONGEST = 200
"""The most items of a history that models of automatic runs read."""
SEQUENCE_NUMBER_STEPS = 3
"""Times whose differences within a user take at most this many values are sequence numbers, not
times."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the training part of a log looks like.

    Of the validation part only the size of the catalogue is known, of the test part nothing. The
    values of a kept column must be readable in all of them.
    """

    users: int
    """Users with at least two interactions, of which a model can learn."""
    items: int
    """Size of the catalogue."""
    interactions: int
    long_length: float
    """The 98th percentile of their number of interactions."""
    repeat_share: float
    """Share of a user's interactions, the first excepted, with an item that the user had before."""
    has_times: bool
    """Whether the times are more than sequence numbers."""
    newest_share: float = 1.0
    """Share of the interactions that are among the newest `LONGEST` of their user."""
    kept: tuple[KeptColumn, ...] = ()
    """The kept columns of the log."""

    @property
    def interactions_per_item(self) -> float:
        """Mean number of interactions of an item."""
        return self.interactions / max(self.items, 1)

    @property
    def features(self) -> list[Feature]:
        """The kept columns that the models read."""
        return [one.feature for one in self.kept if one.feature is not None]

    @classmethod
    def of(cls, dataset: PreparedDataset) -> LogFacts:
        """Read the facts from the training part of a prepared dataset."""
        histories = dataset.histories("valid")
        lengths = histories.lengths
        learnable = lengths[lengths >= 2]
        return cls(
            users=len(learnable),
            items=dataset.num_items,
            interactions=len(histories.items),
            long_length=float(np.percentile(learnable, 98)) if len(learnable) else 0.0,
            repeat_share=_repeat_share(histories),
            has_times=pl.Series(_steps(histories)).n_unique() > SEQUENCE_NUMBER_STEPS,
            newest_share=float(np.minimum(lengths, LONGEST).sum() / max(lengths.sum(), 1)),
            kept=kept_columns(dataset),
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine offers to a training."""

    cores: int
    memory_gib: float
    """Memory of the machine, or of the container that limits it, in GiB."""
    gpu: str | None
    """Name of the GPU, if there is one."""

    @classmethod
    def here(cls) -> Machine:
        """Describe this machine."""
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        return cls(usable_processors(), memory_limit() / (1 << 30), gpu)

    def __str__(self) -> str:
        """Return one line for people."""
        processor = f"{self.cores} core{'s' * (self.cores > 1)}"
        return f"{self.gpu or processor}, {self.memory_gib:.0f} GiB of memory"


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
