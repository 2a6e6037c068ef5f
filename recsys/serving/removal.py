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
    scorer: Scorer, history: Histories, candidate: NDArray[np.int32]
) -> tuple[NDArray[np.float32], float]:
    """Score an item again without each purchase of a history in turn.

    Args:
        scorer: any.
        history: of one user, of L items, each in the catalogue.
        candidate: the token of the item, shape [1].

    Returns:
        What the score loses without each purchase [L], negative where it gains: all of it without
        the only one. And the score.
    """
    length = len(history.items)
    score = float(scorer.score(history, candidate[None])[0, 0])
    if length == 1:  # models need one item
        return np.array([score], dtype=np.float32), score
    shorter = history.take(np.zeros(length, dtype=np.int64))
    items = shorter.items.copy()
    items[shorter.offsets[:-1] + np.arange(length)] = PAD
    shorter = replace(shorter, items=items).take(np.arange(length))  # leaves PAD out
    others = scorer.score(shorter, np.repeat(candidate[None], length, axis=0))[:, 0]
    return (score - others.cpu().numpy()).astype(np.float32), score
