"""How a training with a constant learning rate ends: a refit from the best state."""

from __future__ import annotations

from dataclasses import dataclass

from recsys.config import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.training.loop import build_batches

_SHARE, _LONG_SHARE, _SHORT_SHARE = 0.5, 1.0, 0.25
"""Epochs of the refit, as a share of those before it: what time is kept for, what it has where time
is left over, and the least that does for the second model of a mean. NDCG@10 with counts was .0442,
.0451 and .0450 after about a quarter, half and as many on Sports; .0764, .0774, .0776 on Beauty."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How many epochs the refit of a training has, after so many others."""

    cost: float
    """Steps of an epoch of the refit, in epochs of the training."""

    @classmethod
    def of(cls, experiment: Experiment, dataset: PreparedDataset) -> Ending:
        """Return the ending of a training on a dataset."""
        valid, test = dataset.histories("valid"), dataset.histories("test")
        steps = len(build_batches(experiment, valid)), len(build_batches(experiment, test))
        return cls(steps[1] / max(steps[0], 1))

    def epochs(self, hold: int) -> int:
        """Return the epochs of the refit that time is kept for."""
        return max(1, round(_SHARE * hold))

    def most_epochs(self, hold: int) -> int:
        """Return the epochs of the refit where time is left over."""
        return max(1, round(_LONG_SHARE * hold))

    def fewest_epochs(self, hold: int) -> int:
        """Return the epochs of the shortest refit of the second model of a mean."""
        return max(1, round(_SHORT_SHARE * hold))
