"""Generation: how the decoder's probabilities become purchases, one after the other.

A strategy does not repeat an item unless repeats are allowed; where no item is left, PAD fills the
end. The log-probability of a list is the sum of its tokens', each among the items allowed then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.errors import InputError
from recsys.model.sequence_to_sequence import EncodedHistory, SequenceToSequence

_PAD = 0


class GeneratedLists(NamedTuple):
    """The lists generated for B users, W each, the best first."""

    tokens: Tensor
    """Item tokens [B, W, n], in the order of purchase; PAD where no item was left."""
    log_probabilities: Tensor
    """Shape [B, W]; -inf where there were fewer lists."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """The most probable item at every step."""

    def __call__(
        self,
        model: SequenceToSequence,
        encoded: EncodedHistory,
        allowed: Tensor,
        length: int,
        *,
        repeats: bool = False,
    ) -> GeneratedLists:
        """Generate lists of n tokens for B users, by a model in evaluation mode.

        ``allowed`` [B, I + 1] says by item token whether the item may be generated; ``repeats``,
        whether more than once.
        """
        users = torch.arange(len(allowed), device=allowed.device)[:, None]
        state, cache = model.start(encoded)
        tokens = torch.empty(len(allowed), 1, 0, dtype=torch.int64, device=allowed.device)
        totals = torch.zeros(len(allowed), 1, device=allowed.device)
        for step in range(length):
            scores = _next_log_probabilities(model, state, tokens, allowed, repeats)
            parents, chosen = self.extend(scores, totals)
            cache.select((users * totals.shape[1] + parents).flatten())
            totals = totals[users, parents] + scores[users, parents, chosen]
            tokens = torch.cat([tokens[users, parents], chosen[:, :, None]], dim=2)
            if step + 1 < length:
                state = model.step(chosen, cache)
        order = totals.argsort(dim=1, descending=True, stable=True)
        return GeneratedLists(tokens[users, order], totals[users, order])

    def extend(self, scores: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the lists that go on, by their numbers, and the next token of each: [B, W'] both.

        ``scores`` [B, W, I + 1] are the log-probabilities of the next token, ``totals`` [B, W]
        those of the lists so far.
        """
        return torch.zeros_like(totals, dtype=torch.int64), scores.argmax(dim=-1)


@dataclass(frozen=True, slots=True)
class Sampling(Greedy):
    """An item drawn by the model's probabilities at every step.

    Source of top_p (nucleus sampling): Holtzman et al. 2020, https://arxiv.org/abs/1904.09751
    """

    generator: torch.Generator
    temperature: float = 1.0
    """Below 1 favours probable items, above 1 improbable ones."""
    top_k: int | None = None
    """The number of most probable items to draw from; all if None."""
    top_p: float | None = None
    """Draw from the fewest items whose probabilities add up to this; from all if None."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature={self.temperature}: must be above 0 and finite")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k={self.top_k}: must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: must be above 0 and at most 1")

    def extend(self, scores: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        # Relative to the largest: a temperature near 0 then makes no positive infinity.
        cooled = (scores - scores.amax(dim=-1, keepdim=True)) / self.temperature
        best, tokens = torch.softmax(cooled, dim=-1).sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            best[..., self.top_k :] = 0
        if self.top_p is not None:  # an item stays if those before it add up to less
            before = best.cumsum(dim=-1) - best
            enough = before >= self.top_p * best.sum(dim=-1, keepdim=True)
            best[..., 1:].masked_fill_(enough[..., 1:], 0)
        weights = best[:, 0].to(self.generator.device)
        drawn = torch.multinomial(weights, 1, generator=self.generator).to(tokens.device)
        return torch.zeros_like(drawn), tokens[:, 0].gather(1, drawn)


@dataclass(frozen=True, slots=True)
class Beam(Greedy):
    """The most probable of the lists that grow from the ``width`` best beginnings at every step."""

    width: int = 4

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InputError(f"beam width {self.width}: must be at least 1")

    def extend(self, scores: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        extended = (totals[:, :, None] + scores).flatten(1)
        # No more than there are items: else lists of probability 0 would take the first places.
        best = extended.topk(min(self.width, scores.shape[-1] - 1)).indices
        return best // scores.shape[-1], best % scores.shape[-1]


Strategy = Greedy | Sampling | Beam


def _next_log_probabilities(
    model: SequenceToSequence, state: Tensor, tokens: Tensor, allowed: Tensor, repeats: bool
) -> Tensor:
    """Those of the next token, float32 [B, W, I + 1], from states [B, W, D], tokens [B, W, t]."""
    scores = (state @ model.items.table().T).float()
    scores.masked_fill_(~allowed[:, None], -math.inf)
    if not repeats:
        scores.scatter_(2, tokens, -math.inf)
    scores[..., _PAD] = -math.inf
    # Where no item is left, PAD is certain: its log-probability is 0 and the list ends there.
    scores[..., _PAD].masked_fill_(scores.amax(dim=-1) == -math.inf, 0)
    return torch.log_softmax(scores, dim=-1)
