"""A model whose item embeddings are divided over processes, as a `Scorer` in each of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD, Histories
from recsys.inference.model_scorer import ModelScorer, evaluating
from recsys.model.division import Division
from recsys.model.protocols import Model


class DividedScorer:
    """Scores of the entire catalogue, of which each process computes those of its rows.

    All processes call it together, for the same histories, and each gets all scores.

    Args:
        model: scores the catalogue.
        max_sequence_length: the number of latest items of a history that it reads.
        division: which rows each process holds.
    """

    def __init__(self, model: Model, max_sequence_length: int, division: Division) -> None:
        self._model = model
        self._scorer = ModelScorer(model, max_sequence_length)
        self._division = division

    @property
    def num_items(self) -> int:
        """The size of the catalogue, I."""
        return self._model.num_items

    @torch.inference_mode()
    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; candidates are picked from the scores of all items."""
        with evaluating(self._model):
            own = self._model.head.represent_candidates(self._model.items.weight)
            scores = self._division.joined(self._scorer.score_shared(histories, own), dim=1)
        scores[:, PAD] = -torch.inf
        if candidates is None:
            return scores
        return scores.gather(1, torch.from_numpy(candidates.astype(np.int64)).to(scores.device))
