"""The neural model as a `Scorer`: histories in, scores out, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD, Histories
from recsys.model.heads import CandidateSide
from recsys.model.recommender import SequenceRecommender

_TOKENS_PER_STEP = 1 << 13
"""Rows times positions that go through the encoder together, padding included."""
_ELEMENTS_PER_STEP = 1 << 20
"""Rows times positions times candidates that go through the head together: what target attention
holds per attention head, a few times over."""


class ModelScorer:
    """Scores from a `SequenceRecommender`: only the newest items of a history are read.

    Histories of like length go through the model together, candidates in chunks: memory is that of
    the result and a constant. A user's scores do not depend on who else is asked for, but for
    rounding. Scores are float32 whatever the precision of training.
    """

    def __init__(self, model: SequenceRecommender, max_sequence_length: int) -> None:
        self._model = model
        self._max_sequence_length = max_sequence_length

    @property
    def num_items(self) -> int:
        """Items in the catalogue."""
        return self._model.num_items

    @torch.inference_mode()
    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; on the device of the model.

        Raises:
            ValueError: a history is empty: the model has no opinion then.
        """
        recent = histories.newest(self._max_sequence_length)
        lengths = recent.lengths
        if not lengths.all():
            raise ValueError(f"history {lengths.argmin()} is empty: the model needs one item")
        device = self._model.items.weight.device
        width = self.num_items + 1 if candidates is None else candidates.shape[1]
        scores = torch.empty(len(histories), width, device=device)
        training = self._model.training
        self._model.eval()
        try:
            with torch.autocast(device.type, enabled=False):
                side = self._model.head.candidate_side(self._model.items.weight)
                for rows in _like_lengths(lengths):
                    part = self._catalogue_scores(recent.take(rows), side)
                    if candidates is not None:
                        tokens = torch.from_numpy(candidates[rows].astype(np.int64))
                        part = part.gather(1, tokens.to(device))
                    scores[torch.from_numpy(rows).to(device)] = part
        finally:
            self._model.train(training)
        return scores

    def _catalogue_scores(self, histories: Histories, side: CandidateSide) -> Tensor:
        """Scores [B, I + 1] of a few histories."""
        device = self._model.items.weight.device
        items = torch.from_numpy(histories.padded()).to(device)
        lengths = torch.from_numpy(histories.lengths).to(device)
        history = self._model(items, lengths)
        step = max(1, _ELEMENTS_PER_STEP // items.numel())
        scores = torch.empty(len(histories), self.num_items + 1, device=device)
        for start in range(0, self.num_items + 1, step):
            chunk = tuple(part[..., start : start + step, :] for part in side)
            scores[:, start : start + step] = self._model.head.newest(history, chunk, lengths)
        scores[:, PAD] = -torch.inf
        return scores


def _like_lengths(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The rows, shortest history first, in runs that fill a step of the encoder.

    >>> [rows.tolist() for rows in _like_lengths(np.array([5000, 1, 4000]))]
    [[1, 2], [0]]
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        # Within the run to come, widths only grow: the longest run that fits is the first too wide.
        widths = lengths[order[start : start + _TOKENS_PER_STEP]]
        tokens = widths * np.arange(1, len(widths) + 1)
        stop = start + max(1, int(np.searchsorted(tokens, _TOKENS_PER_STEP, side="right")))
        yield order[start:stop]
        start = stop
