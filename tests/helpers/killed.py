"""Trainings that end as by kill -9."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from recsys.data.batches import SequenceBatch
from recsys.training.module import TrainingModule


class Killed(BaseException):
    """A stand-in for kill -9."""


def killed(run: Callable[[], object], step: int) -> None:
    """Kill a run at a training step, counted from its start and including the refit."""
    train, left = TrainingModule.training_step, iter(range(step - 1, -1, -1))

    def mortal(self: TrainingModule, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        if next(left) == 0:
            raise Killed
        return train(self, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingModule, "training_step", mortal)
        with pytest.raises(Killed):
            run()
