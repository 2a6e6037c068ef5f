"""Learning-rate schedules: from the step to a factor of the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from recsys.config import TrainingConfig


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning-rate schedule of a training, in steps."""

    kind: Literal["hold_decay", "inverse_square_root"]
    warmup_steps: int
    decay_steps: int
    total_steps: int

    @classmethod
    def plan(cls, config: TrainingConfig, epochs: int, steps_per_epoch: int) -> Schedule:
        """Return the schedule of a number of epochs; warm-up takes at most a tenth of the steps."""
        total = epochs * steps_per_epoch
        decay = round(total * config.decay_fraction)
        return cls(config.schedule, min(config.warmup_steps, -(-total // 10)), decay, total)

    def decay_from(self, step: int, decay_steps: int) -> Schedule:
        """Return the same schedule with the decay starting at a given step."""
        return replace(self, decay_steps=decay_steps, total_steps=step + decay_steps)

    def __call__(self, step: int) -> float:
        """Return the factor of the learning rate at a step."""
        if self.kind == "inverse_square_root":
            return inverse_square_root(step, self.warmup_steps)
        return warmup_hold_decay(step, self.warmup_steps, self.decay_steps, self.total_steps)


def warmup_hold_decay(step: int, warmup_steps: int, decay_steps: int, total_steps: int) -> float:
    """Rise linearly, hold, then decay linearly to a hundredth at the end.

    The final decay gains as much as a larger model (ML-1M .1903 to .1950 in the ANCHORS trials).

    >>> [warmup_hold_decay(step, 2, 4, 8) for step in range(9)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.01]
    """
    rise = (step + 1) / max(warmup_steps, 1)
    decay = (total_steps - step) / max(decay_steps, 1)
    return max(0.01, min(1.0, rise, decay))


def inverse_square_root(step: int, warmup_steps: int) -> float:
    """Rise linearly, then decay with the square root of the step.

    The published rate is D^-0.5 · min(s^-0.5, s · warmup^-1.5) at step s, counted from 1: this
    factor times its peak, (D · warmup)^-0.5. Source: Vaswani et al. 2017, equation 3.

    >>> [round(inverse_square_root(step, 4), 3) for step in (0, 1, 3, 15)]
    [0.25, 0.5, 1.0, 0.5]
    """
    warmup = max(warmup_steps, 1)
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))
