"""How long the refit is that ends a training with a constant learning rate."""

from __future__ import annotations

from recsys.config import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.training.loop import build_batches

_SHARE, _LONG_SHARE, _SHORT_SHARE = 0.5, 1.0, 0.25
"""Epochs of the refit, as a share of those before it: what time is kept for, what it has where time
is left over, and the least that does for the second model of a mean. NDCG@10 with counts was .0442,
.0451 and .0450 after about a quarter, half and as many on Sports; .0764, .0774, .0776 on Beauty."""


def planned_epochs(hold: int) -> int:
    """Return the epochs of the refit that time is kept for, after ``hold`` epochs of training."""
    return max(1, round(_SHARE * hold))


def most_epochs(hold: int) -> int:
    """Return the epochs of the refit where time is left over."""
    return max(1, round(_LONG_SHARE * hold))


def fewest_epochs(hold: int) -> int:
    """Return the epochs of the shortest refit of the second model of a mean."""
    return max(1, round(_SHORT_SHARE * hold))


def refit_cost(experiment: Experiment, dataset: PreparedDataset) -> float:
    """Return the steps of an epoch of the refit, in epochs of the training."""
    valid, test = dataset.histories("valid"), dataset.histories("test")
    steps = len(build_batches(experiment, valid)), len(build_batches(experiment, test))
    return steps[1] / max(steps[0], 1)
