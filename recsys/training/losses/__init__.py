"""Losses: pure functions of logits and targets; they never see a model."""

from recsys.training.losses.chunks import LogitsFunction, chunked_sum, count_targets
from recsys.training.losses.full_catalogue import chunked_cross_entropy, cross_entropy
from recsys.training.losses.sampled import (
    SampledLoss,
    binary_cross_entropy,
    calibrated_weight,
    chunked_sampled_loss,
    sampled_softmax,
)
from recsys.training.losses.seen import NO_NEGATIVE, SeenItems, mask_negatives

__all__ = [
    "NO_NEGATIVE",
    "LogitsFunction",
    "SampledLoss",
    "SeenItems",
    "binary_cross_entropy",
    "calibrated_weight",
    "chunked_cross_entropy",
    "chunked_sampled_loss",
    "chunked_sum",
    "count_targets",
    "cross_entropy",
    "mask_negatives",
    "sampled_softmax",
]
