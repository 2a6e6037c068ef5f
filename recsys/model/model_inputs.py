"""The inputs of a model: histories with their times and features."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from recsys.model.feature_embeddings import FeatureValues

TimesRead = Literal["none", "past", "request"]
"""Which times a model reads: none; the age of each interaction when the latest one happened
(past); or its age at the time of the request (request)."""


class ModelInputs(NamedTuple):
    """Histories with everything that any model reads; each model ignores what it does not use."""

    items: Tensor
    """Item tokens [B, L], right-padded with 0; a 0 inside a sequence is a masked item."""
    lengths: Tensor
    """Real tokens per row [B]."""
    times: Tensor | None = None
    """int64 [B, L + 1], in one unit: the time of each interaction and, after the last one, the time
    of the next request. If None, the times are unknown."""
    features: FeatureValues | None = None
    """Features of each interaction and of its user [B, L, ...]. If None, there are none."""
