"""Generate lists of next purchases from histories, with a generative model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.model_scorer import evaluating
from recsys.inference.scorer import ELEMENTS_PER_BATCH, Seen, batches_of_similar_length
from recsys.model.generation import Beam, Greedy, Strategy
from recsys.model.sequence_to_sequence import SequenceToSequence

_TOKENS = 1 << 13  # of histories that are encoded at once, padding included


@dataclass(frozen=True, slots=True)
class SequenceGenerator:
    """Generates the next purchases of many users, in bounded memory."""

    model: SequenceToSequence
    max_sequence_length: int
    strategy: Strategy = field(default_factory=Greedy)

    @torch.inference_mode()
    def generate(
        self,
        histories: Histories,
        length: int,
        seen: Seen,
        *,
        candidates: NDArray[np.int32] | None = None,
        repeats: bool = False,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Generate n next purchases of each user: the most probable of the strategy's lists.

        With "filter", no item of a user's history is generated; with candidates, no other token;
        without ``repeats``, none twice. An InputError if the model cannot generate that many.

        Returns:
            Item tokens [B, n] in the order of purchase, PAD where no item was left; and the
            log-probabilities of the lists [B].
        """
        if not 1 <= length <= self.model.max_generated:
            raise InputError(
                f"n={length}: this model generates 1 to {self.model.max_generated} purchases "
                "(model.max_generated of its config)"
            )
        recent = histories.latest(self.max_sequence_length)
        if not recent.lengths.all():
            raise ValueError(f"history {recent.lengths.argmin()} is empty: one item is needed")
        lists = np.empty((len(histories), length), dtype=np.int32)
        scores = np.empty(len(histories), dtype=np.float32)
        width = self.strategy.width if isinstance(self.strategy, Beam) else 1
        most_rows = max(1, ELEMENTS_PER_BATCH // ((self.model.num_items + 1) * width))
        device = self.model.items.weight.device
        with evaluating(self.model):
            for rows in batches_of_similar_length(recent.lengths, _TOKENS, most_rows):
                allowed = self._allowed(histories.take(rows), seen, candidates)
                read = recent.take(rows)
                arrays = read.padded(), read.lengths
                encoded = self.model.encode(*(torch.from_numpy(a).to(device) for a in arrays))
                best = self.strategy(self.model, encoded, allowed, length, repeats=repeats)
                lists[rows] = best.tokens[:, 0].cpu().numpy()
                scores[rows] = best.log_probabilities[:, 0].cpu().numpy()
        return lists, scores

    def _allowed(
        self, histories: Histories, seen: Seen, candidates: NDArray[np.int32] | None
    ) -> Tensor:
        catalogue = torch.full((self.model.num_items + 1,), candidates is None)
        if candidates is not None:
            catalogue[torch.from_numpy(candidates.astype(np.int64))] = True
        allowed = catalogue.repeat(len(histories), 1)
        if seen == "filter":
            seen_items = torch.from_numpy(histories.items.astype(np.int64))
            allowed[torch.from_numpy(histories.users), seen_items] = False
        return allowed.to(self.model.items.weight.device)
