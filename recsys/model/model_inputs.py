"""What a model reads."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from recsys.model.feature_embeddings import FeatureValues


class Inputs(NamedTuple):
    """Some histories, with all that any model reads of them; each passes over what it does not."""

    items: Tensor
    """Item tokens [B, L], right-padded with 0; 0 inside a sequence is a hidden item."""
    lengths: Tensor
    """Real tokens per row [B]."""
    times: Tensor | None = None
    """When each item was had and, behind the last, when the next one was or is asked for, int64
    [B, L + 1], in one unit; None: not known."""
    features: FeatureValues | None = None
    """Of each item's interaction and of its user [B, L, ...]; None: there are none."""
