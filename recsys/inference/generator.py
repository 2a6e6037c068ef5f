"""The sequence-to-sequence model as a writer: histories in, lists of purchases out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.model_scorer import evaluating, like_lengths
from recsys.inference.ranking import Seen
from recsys.inference.scorer import ELEMENTS_PER_BATCH
from recsys.model.generation import Beam, Greedy, Strategy
from recsys.model.sequence_to_sequence import SequenceToSequence

_TOKENS = 1 << 13
"""Tokens of histories that are read at once, padding included."""


@dataclass(frozen=True, slots=True)
class SequenceGenerator:
    """Writes the next purchases of many users, in bounded memory."""

    model: SequenceToSequence
    max_sequence_length: int
    """The newest so many items of a history are read."""
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
        """The next purchases of each user; of several lists the most probable.

        Args:
            histories: of B users, none of them empty.
            length: purchases to write, n.
            seen: filter: nothing of a history is written; allow: anything may be.
            candidates: item tokens that may be written; None: the whole catalogue.
            repeats: an item may be written more than once.

        Returns:
            Item tokens [B, n] in the order of purchase, PAD where nothing was left to write; and
            the log-probabilities of the lists [B].

        Raises:
            InputError: the model was not made to write so many.
            ValueError: a history is empty.
        """
        if not 1 <= length <= self.model.max_generated:
            raise InputError(
                f"n={length}: this model writes 1 to {self.model.max_generated} purchases "
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
            for rows in like_lengths(recent.lengths, _TOKENS, most_rows):
                allowed = self._allowed(histories.take(rows), seen, candidates)
                read = recent.take(rows)
                memory = self.model.remember(
                    torch.from_numpy(read.padded()).to(device),
                    torch.from_numpy(read.lengths).to(device),
                )
                written = self.strategy(self.model, memory, allowed, length, repeats=repeats)
                lists[rows] = written.tokens[:, 0].cpu().numpy()
                scores[rows] = written.log_probabilities[:, 0].cpu().numpy()
        return lists, scores

    def _allowed(
        self, histories: Histories, seen: Seen, candidates: NDArray[np.int32] | None
    ) -> Tensor:
        """What may be written for each user, bool [B, I + 1]."""
        device = self.model.items.weight.device
        catalogue = torch.full((self.model.num_items + 1,), candidates is None, device=device)
        if candidates is not None:
            catalogue[torch.from_numpy(candidates.astype(np.int64)).to(device)] = True
        allowed = catalogue.repeat(len(histories), 1)
        if seen == "filter":
            had = torch.from_numpy(histories.items.astype(np.int64)).to(device)
            allowed[torch.from_numpy(histories.users).to(device), had] = False
        return allowed
