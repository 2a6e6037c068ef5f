"""The state of a training: all that decides how it resumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.evaluation.tables import RankTable
from recsys.training.precision import Precision

MONITOR = "epoch/valid_ndcg_at_10"
"""The metric that chooses the best epoch."""


class EarlyDecay(NamedTuple):
    """When patience was exhausted and the learning rate began to decay ahead of schedule."""

    epoch: int
    """Number of epochs completed by then."""
    step: int
    """Number of steps in those epochs."""


@dataclass
class Curve:
    """The learning curve: the metrics of each epoch and the weights of the best one."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each epoch: train/loss, costs as train/…, and, if it was validated, epoch/…"""
    early_decay: EarlyDecay | None = None
    """If None, the learning rate decays on schedule, if at all."""
    best_epoch: int | None = None
    """Number of the epoch with the best validation, from 1; 0 for a warm start."""
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    best_ranks: RankTable | None = None
    """Ranks of the validation targets under those weights; None without validation."""
    precision: Precision | None = None
    """The precision that was settled on; None before the first step."""
    interrupted: bool = False
    """Whether Ctrl-C ended the training."""
    start: dict[str, float] = field(default_factory=dict)
    """Metrics of a warm start, which is epoch 0, where it may be the best; empty otherwise."""

    @property
    def best(self) -> float:
        """The best validation NDCG@10 so far; -1 before the first validation."""
        all_epochs = (self.start, *self.epochs)
        return max((epoch[MONITOR] for epoch in all_epochs if MONITOR in epoch), default=-1.0)

    def validated(self) -> tuple[int, RankTable]:
        """Return the best epoch and its ranks.

        Raises:
            ValueError: the training had no validation.
        """
        if self.best_epoch is None or self.best_ranks is None:
            raise ValueError("no epoch was validated")
        return self.best_epoch, self.best_ranks


@dataclass(frozen=True)
class PartialEpoch:
    """Totals of the batches of an epoch that is under way."""

    batches: int = 0
    loss: float = 0.0
    """Sum over the targets."""
    targets: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class TrainingState:
    """A training between two steps; seed and epoch decide the order of the batches.

    A training that resumes from it gives the same result, to the last bit on a CPU.
    """

    weights: dict[str, Tensor]
    """Weights of the model, by name."""
    moments: dict[str, Tensor]
    """Optimiser state: ``WEIGHT.exp_avg`` and so on."""
    random: Tensor
    """Random state of each process [P, bytes]; see `random_state`."""
    step: int
    """Number of steps in all epochs."""
    epoch: PartialEpoch
    """The epoch of the next batch."""
    curve: Curve
    """The completed epochs."""
    average: Mapping[str, Tensor] = field(default_factory=dict)
    """The average of the weights after each of them, which no step changes; empty without one."""

    @property
    def ended(self) -> bool:
        """Whether no steps are left; see `finished`."""
        return len(self.random) == 0

    def copy(self) -> TrainingState:
        """Copy the state after a whole epoch, so that a training that goes on does not change it.

        It is on the CPU: the state of a training that waits for its turn must not take the GPU's
        memory from another one. The best weights and ranks of the curve are not copied, nor an
        average that is on the CPU: trainings replace them but do not change them.
        """
        curve = self.curve
        return TrainingState(
            {name: tensor.to("cpu", copy=True) for name, tensor in self.weights.items()},
            {name: tensor.to("cpu", copy=True) for name, tensor in self.moments.items()},
            self.random.clone(),
            self.step,
            PartialEpoch(),
            replace(curve, epochs=[dict(epoch) for epoch in curve.epochs], interrupted=False),
            {name: tensor.cpu() for name, tensor in self.average.items()},
        )

    @classmethod
    def finished(cls, curve: Curve) -> TrainingState:
        """Return the state of a finished training, of which only the curve is used."""
        random = torch.empty(0, 0, dtype=torch.uint8)
        return cls(curve.best_weights, {}, random, 0, PartialEpoch(), curve)


def random_state() -> Tensor:
    """Return the torch random state of this process, of its CPU and of its GPU if any [bytes]."""
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state()]) if torch.cuda.is_available() else state


def restore_random(state: Tensor) -> None:
    """Restore a state that `random_state` returned."""
    size = len(torch.get_rng_state())
    # A copy: of the row of a second process, which does not begin where its memory does, torch 2.13
    # reads what is before it, and crashes.
    torch.set_rng_state(state[:size].clone())
    if torch.cuda.is_available() and len(state) > size:
        torch.cuda.set_rng_state(state[size:].clone())
