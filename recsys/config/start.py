"""How a training starts from a trained model."""

from __future__ import annotations

import math

from pydantic import Field

from recsys.config.section import Section
from recsys.config.training import TrainingConfig


class StartConfig(Section):
    """A warm start: the training begins with the weights of a trained model, not with random ones.

    Items are matched by their ids; new ones are given rows of their own. The training is shorter
    and gentler than one from random weights: its learning rate falls in a line to a hundredth.
    """

    bundle: str
    """Folder of the trained model; ``--from`` sets it."""
    digest: str | None = None
    """SHA-256 of the manifest of that folder. The run records it; where it is given, another model
    in the folder is refused."""
    epochs: float = Field(0.25, gt=0, le=1)
    """Epochs as a share of training.max_epochs, at least one; likewise training.patience."""
    learning_rate: float = Field(0.3, gt=0, le=10)
    """Peak learning rate as a share of training.learning_rate."""
    replay: float = Field(0.5, ge=0, lt=1)
    """Share of the histories of an epoch that have no new interaction; a new interaction is later
    than all that the model was trained on. Each epoch reads all histories with new interactions,
    and as many others, drawn anew, as make this share. 0: only histories with new ones."""

    def applied_to(self, training: TrainingConfig) -> TrainingConfig:
        """Return the training section of a training that starts warm."""
        return training.model_copy(
            update={
                "max_epochs": math.ceil(training.max_epochs * self.epochs),
                "patience": math.ceil(training.patience * self.epochs),
                "learning_rate": training.learning_rate * self.learning_rate,
                "decay_fraction": 1.0,
                "average_weights": False,
            }
        )
