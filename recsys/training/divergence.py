"""Training that diverged: found before anything is saved that no training can resume from."""

from __future__ import annotations

import logging
import math

import torch

from recsys.config import TrainingConfig
from recsys.errors import InputError
from recsys.model.protocols import Model
from recsys.training import processes
from recsys.training.state import Curve

logger = logging.getLogger(__name__)

_WORSE_THAN_CHANCE = 0.5
"""How far above that of a uniform guess a loss must be to say so, in nats."""


class DivergedError(InputError):
    """The loss, the weights or the scores are no longer finite; the message names the remedy."""

    @classmethod
    def of(cls, what: str, epoch: int, config: TrainingConfig) -> DivergedError:
        """Return the error of an epoch, counted from 1."""
        return cls(
            f"training diverged in epoch {epoch}: {what} with training.learning_rate="
            f"{config.learning_rate:g}: choose a lower one, and start over with --fresh"
        )


def check_finite(model: Model, loss: float, epoch: int, config: TrainingConfig) -> None:
    """Check the summed loss of an epoch so far, and the weights.

    Raises:
        DivergedError: one of them is infinite or not a number.
    """
    if not math.isfinite(loss):
        raise DivergedError.of(f"the loss is {loss}", epoch, config)
    weights = model.state_dict()
    broken = torch.tensor([not bool(weight.isfinite().all()) for weight in weights.values()])
    # Where each process holds rows of its own, one may find what the others do not have.
    for name, found in zip(weights, processes.all_reduce_sum(broken.int()).tolist(), strict=True):
        if found:
            raise DivergedError.of(f"the weight {name} is not finite", epoch, config)


def warn_of_harm(curve: Curve, config: TrainingConfig, num_items: int) -> None:
    """Warn if the last epoch's loss over the full catalogue is worse than a uniform guess."""
    chance = math.log(num_items)
    if config.loss.kind != "cross_entropy" or not curve.epochs:
        return
    loss = curve.epochs[-1]["train/loss"]
    if loss > chance + _WORSE_THAN_CHANCE:
        logger.warning(
            "the loss of the last epoch, %.2f, is above that of a uniform guess, %.2f: "
            "training.learning_rate=%g may be too high",
            *(loss, chance, config.learning_rate),
        )
