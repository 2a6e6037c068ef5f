"""Where a training stands: all that decides how it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.evaluation.tables.rank import RankTable

MONITOR = "epoch/valid_ndcg_at_10"
"""What the best epoch is chosen by."""


class EarlyDecay(NamedTuple):
    """Where patience ended, and the learning rate began to fall before its time."""

    epoch: int
    """Epochs done."""
    step: int
    """Steps done in these."""


@dataclass
class Curve:
    """What each epoch gave, and the weights of the best one."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    """Per epoch: train/loss, train/… of what it cost, and where it was validated epoch/…"""
    early_decay: EarlyDecay | None = None
    """None: the learning rate falls when it was to, if it does."""
    best_epoch: int | None = None
    """Number of epochs after which validation was best (1 = after the first)."""
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    best_ranks: RankTable | None = None
    """Of the validation targets under those weights; None without validation."""
    interrupted: bool = False
    """By Ctrl-C."""

    @property
    def best(self) -> float:
        """The best validation NDCG@10 so far; -1 before the first."""
        return max((epoch[MONITOR] for epoch in self.epochs if MONITOR in epoch), default=-1.0)

    def validated(self) -> tuple[int, RankTable]:
        """The best epoch and its ranks, of a training with validation.

        Raises:
            ValueError: it was without.
        """
        if self.best_epoch is None or self.best_ranks is None:
            raise ValueError("no epoch was validated")
        return self.best_epoch, self.best_ranks


@dataclass(frozen=True)
class EpochSoFar:
    """What the batches of an epoch have added up to."""

    batches: int = 0
    loss: float = 0.0
    """Sum over the targets."""
    targets: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class TrainingState:
    """A training between two steps. The order of the batches is no part: seed and epoch decide it.

    A new training that starts from it ends as this one does, to the bit on a CPU.
    """

    weights: dict[str, Tensor]
    """Of the model, by name."""
    moments: dict[str, Tensor]
    """Of the optimiser: ``WEIGHT.exp_avg`` and so on."""
    random: Tensor
    """A random state (see `random_state`) of each process [P, bytes]."""
    step: int
    """Steps done in all epochs."""
    epoch: EpochSoFar
    """The one that the next batch belongs to."""
    curve: Curve
    """The epochs before that."""

    @property
    def ended(self) -> bool:
        """Nothing of the training is left to do: see `at_the_end`."""
        return len(self.random) == 0

    @classmethod
    def at_the_end(cls, curve: Curve) -> TrainingState:
        """Of a training that is over: nothing but its curve counts."""
        random = torch.empty(0, 0, dtype=torch.uint8)
        return cls(curve.best_weights, {}, random, 0, EpochSoFar(), curve)


def random_state() -> Tensor:
    """What torch draws next in this process, on the CPU and on its GPU if it has one [bytes]."""
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state()]) if torch.cuda.is_available() else state


def restore_random(state: Tensor) -> None:
    """Draw what would have been drawn next where `random_state` was asked."""
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if torch.cuda.is_available() and len(state) > size:
        torch.cuda.set_rng_state(state[size:])
