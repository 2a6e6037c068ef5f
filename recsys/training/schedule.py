"""Learning-rate schedules: step number to a factor of the learning rate."""

from __future__ import annotations


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
