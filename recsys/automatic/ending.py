"""How a training with a constant learning rate ends: a refit, in which the rate decays."""

from __future__ import annotations

from dataclasses import dataclass

from recsys.config import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.training.loop import build_batches

_DECAY_SHARE, _LONG_DECAY_SHARE = 0.6, 1.0
"""Epochs of the decay, as a share of the epochs before it: usually, and where time is left over. On
MovieLens-1M 16 epochs after 16 were 1.3% better on validation than ten, on Sports they did not
matter."""
_LARGE_VALIDATION = 0.05
"""From this share of the interactions on, a refit that only has a decay loses quality: the
validation part is trained on at the constant rate too."""
_REFIT_SHARE = 0.25
"""Epochs at the constant rate of a refit that starts from the best state, as a share of those
before it. On Beauty they were worth as much as a refit from the beginning."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How many epochs the end of a training has, after so many at the constant rate."""

    validation_is_large: bool
    """Whether the validation part must be trained on at the constant rate too."""
    refit_cost: float
    """Steps of an epoch of the refit, in epochs of the training."""

    @classmethod
    def of(cls, experiment: Experiment, dataset: PreparedDataset) -> Ending:
        """Return the ending of a training on a dataset."""
        valid, test = dataset.histories("valid"), dataset.histories("test")
        before, after = len(valid.items), len(test.items)
        steps = len(build_batches(experiment, valid)), len(build_batches(experiment, test))
        return cls(after - before >= _LARGE_VALIDATION * after, steps[1] / max(steps[0], 1))

    def decay_epochs(self, hold: int) -> int:
        """Return the epochs of the decay."""
        return max(1, round(_DECAY_SHARE * hold))

    def long_decay_epochs(self, hold: int) -> int:
        """Return the epochs of the decay where time is left over."""
        return max(1, round(_LONG_DECAY_SHARE * hold))

    def refit_epochs(self, hold: int) -> int:
        """Return the epochs at the constant rate of a refit that starts from the best state."""
        return max(1, round(_REFIT_SHARE * hold)) if self.validation_is_large else 0
