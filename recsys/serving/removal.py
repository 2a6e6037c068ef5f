"""What a score loses without each purchase: an explanation for scores that have no parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.inference.scorer import Scorer


@torch.inference_mode()
def losses_by_removal(
    scorer: Scorer, history: Histories, candidates: NDArray[np.int32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Score items again without each purchase of a history in turn.

    Args:
        scorer: any.
        history: of one user, of L items, each in the catalogue.
        candidates: the tokens of the items [C].

    Returns:
        What each score loses without each purchase [C, L], negative where it gains: all of it
        without the only one. And the scores [C].
    """
    length = len(history.items)
    scores: NDArray[np.float32] = scorer.score(history, candidates[None])[0].cpu().numpy()
    if length == 1:  # models need one item
        return scores[:, None], scores
    shorter = history.take(np.zeros(length, dtype=np.int64))
    items = shorter.items.copy()
    items[shorter.offsets[:-1] + np.arange(length)] = PAD
    shorter = replace(shorter, items=items).take(np.arange(length))  # leaves PAD out
    others = scorer.score(shorter, np.repeat(candidates[None], length, axis=0))
    return scores[:, None] - others.T.cpu().numpy(), scores
