"""How long a training is planned: epochs of a small log have few steps, so it has more of them."""

from __future__ import annotations

import logging
import math

from recsys.config import AveragedConfig, Experiment
from recsys.data.prepared import PreparedDataset
from recsys.training.loop import build_batches

logger = logging.getLogger(__name__)

FEW_STEPS = 1_000
"""A training of fewer steps has hardly begun: on a log of 800 items, with 3 steps an epoch, ten
times the 120 steps of 40 epochs raised the test NDCG@10 from .459 to .532."""
_ENOUGH_STEPS = 2 * FEW_STEPS
"""The steps of a training for which no epochs are named; it ends earlier without gains."""
_STEPS_TO_VALIDATION = 50
"""Steps between its validations."""


def with_enough_epochs(experiment: Experiment, dataset: PreparedDataset) -> Experiment:
    """Return an experiment whose defaults in epochs suit the log, if it does not name its epochs.

    ``training.max_epochs`` is the usual number, or more for 2,000 steps; then ``validate_every``
    and ``patience`` grow likewise, unless they are named. The members of a mean have their own.

    Raises:
        InputError: no history has two items.
    """
    training = experiment.training
    named = training.model_fields_set
    if "max_epochs" in named or isinstance(experiment.model, AveragedConfig):
        return experiment
    steps = len(build_batches(experiment, dataset.histories("valid")))
    every = max(training.validate_every, math.ceil(_STEPS_TO_VALIDATION / steps))
    defaults = {
        "max_epochs": max(training.max_epochs, math.ceil(_ENOUGH_STEPS / steps)),
        "validate_every": every,
        "patience": training.patience * every,
    }
    changes = {name: value for name, value in defaults.items() if name not in named}
    longer = training.model_copy(update=changes)
    if longer.max_epochs > training.max_epochs:
        logger.info(
            "training.max_epochs: %d, validated every %d: an epoch has only %d steps",
            *(longer.max_epochs, longer.validate_every, steps),
        )
    return experiment.model_copy(update={"training": longer})


def log_short_plan(epochs: int, steps: int) -> None:
    """Log that a plan has few steps."""
    if (total := epochs * steps) < FEW_STEPS:
        logger.info(
            "only %d steps are planned, %d in each of %d epochs, and most models need %d: "
            "--set training.max_epochs=%d",
            *(total, steps, epochs, FEW_STEPS, math.ceil(FEW_STEPS / steps)),
        )
