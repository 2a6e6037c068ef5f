"""The floating-point precision of the matrix products of a training."""

from __future__ import annotations

from typing import Literal

import torch

from recsys.config import Experiment

Precision = Literal["bf16", "float32"]


def with_precision(experiment: Experiment, precision: Precision | None) -> Experiment:
    """Return the experiment with a settled precision; unchanged if None."""
    if precision is None:
        return experiment
    training = experiment.training.model_copy(update={"precision": precision})
    return experiment.model_copy(update={"training": training})


def lightning_name(precision: Precision) -> Literal["bf16-mixed", "32-true"]:
    """Return what Lightning calls it."""
    return "bf16-mixed" if precision == "bf16" else "32-true"


def product_dtype(precision: Precision | None) -> torch.dtype:
    """Return the dtype of the matrix products; float32 unless it is bf16."""
    return torch.bfloat16 if precision == "bf16" else torch.float32
