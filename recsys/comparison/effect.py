"""The effect size of a paired difference."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats


class Effect(NamedTuple):
    """The size of a paired difference."""

    d_z: float
    """Cohen's d_z: the mean difference over the standard deviation of the users' differences; 0 if
    every difference is 0, infinite if all are equal otherwise."""
    users_needed: float
    """The number of users with which a paired test detects a difference of that size; infinite if
    there is none."""


def paired_effect(
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    *,
    level: float = 0.05,
    power: float = 0.8,
) -> Effect:
    """Return the size of the difference between two values of each user [U].

    The users needed are those of the two-sided paired t-test, ``(z_level + z_power)² / d_z²``, plus
    ``z_level² / 2``, since the standard deviation is estimated too (Guenther 1981).

    Args:
        ours: the values of one model.
        theirs: the values of the other, for the same users.
        level: the probability of detecting a difference where there is none.
        power: the probability of detecting this one.

    Raises:
        ValueError: there are fewer than two users.

    >>> paired_effect(np.array([1.0, 0, 1, 1]), np.array([0.0, 0, 0, 1]))
    Effect(d_z=0.8660254037844387, users_needed=13.0)
    """
    if len(ours) < 2:
        raise ValueError("an effect size needs two users or more")
    differences = ours - theirs
    mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
    if mean == 0:
        return Effect(0.0, math.inf)
    d_z = mean / deviation if deviation else math.copysign(math.inf, mean)
    z_level, z_power = stats.norm.ppf(1 - level / 2), stats.norm.ppf(power)
    needed = (z_level + z_power) ** 2 / d_z**2 + z_level**2 / 2
    return Effect(d_z, float(max(2, math.ceil(needed))))
