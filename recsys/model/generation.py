"""Generation: how the decoder's probabilities become purchases, one after the other.

A strategy generates a number of tokens for each of B users from their encoded histories. It does
not repeat an item unless repeats are allowed; where no item is left, PAD fills the end. The
log-probability of a list is the sum of its tokens', each among the items allowed at its step.
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
    """Shape [B, W]."""


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
        """Generate one list for each user.

        Args:
            model: in evaluation mode.
            encoded: the histories of B users.
            allowed: bool [B, I + 1], by item token: whether the item may be generated.
            length: the number of tokens to generate, n.
            repeats: whether an item may be generated more than once.
        """
        state, cache = model.start(encoded)
        tokens = torch.empty(len(allowed), 1, 0, dtype=torch.int64, device=allowed.device)
        total = torch.zeros(len(allowed), 1, device=allowed.device)
        for step in range(length):
            scores = _next_log_probabilities(model, state, tokens, allowed, repeats)
            chosen = self.choose(scores)
            total += scores.gather(2, chosen[:, :, None])[..., 0]
            tokens = torch.cat([tokens, chosen[:, :, None]], dim=2)
            if step + 1 < length:
                state = model.step(chosen, cache)
        return GeneratedLists(tokens, total)

    def choose(self, scores: Tensor) -> Tensor:
        """Tokens [B, W] from log-probabilities [B, W, I + 1]."""
        return scores.argmax(dim=-1)


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

    def choose(self, scores: Tensor) -> Tensor:
        """Draw tokens [B, W] from log-probabilities [B, W, I + 1]."""
        # Relative to the largest: a temperature near 0 then makes no positive infinity.
        cooled = (scores - scores.amax(dim=-1, keepdim=True)) / self.temperature
        best, tokens = torch.softmax(cooled, dim=-1).sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            best[..., self.top_k :] = 0
        if self.top_p is not None:  # an item stays if those before it add up to less
            before = best.cumsum(dim=-1) - best
            enough = before >= self.top_p * best.sum(dim=-1, keepdim=True)
            best[..., 1:].masked_fill_(enough[..., 1:], 0)
        weights = best.flatten(0, -2).to(self.generator.device)
        drawn = torch.multinomial(weights, 1, generator=self.generator).to(tokens.device)
        return tokens.gather(-1, drawn.view(*tokens.shape[:-1], 1))[..., 0]


@dataclass(frozen=True, slots=True)
class Beam:
    """The most probable of the lists that grow from the ``width`` best beginnings at every step.

    The list of greedy generation always stays among them, so the best list is never less probable
    than that one; plain beam search does not guarantee it.
    """

    width: int = 4

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InputError(f"beam width {self.width}: must be at least 1")

    def __call__(
        self,
        model: SequenceToSequence,
        encoded: EncodedHistory,
        allowed: Tensor,
        length: int,
        *,
        repeats: bool = False,
    ) -> GeneratedLists:
        """See `Greedy`; ``width`` lists for each user, some of probability 0 if there are fewer."""
        width = min(self.width, model.num_items)
        state, cache = model.start(encoded)
        users = torch.arange(len(allowed), device=allowed.device)[:, None]
        tokens = torch.empty(len(allowed), 1, 0, dtype=torch.int64, device=allowed.device)
        totals = torch.zeros(len(allowed), 1, device=allowed.device)
        greedy = torch.zeros_like(users)  # the index of the greedy hypothesis
        for step in range(length):
            scores = _next_log_probabilities(model, state, tokens, allowed, repeats)
            values, likeliest = _likeliest(scores, width)
            children = (totals[:, :, None] + values).flatten(1)
            kept = children.topk(min(width, children.shape[1])).indices
            greedy_child = greedy * width
            lost = ~(kept == greedy_child).any(dim=1)
            kept[lost, -1] = greedy_child[lost, 0]
            greedy = (kept == greedy_child).int().argmax(dim=1, keepdim=True)
            parents = kept // width
            chosen = likeliest.flatten(1).gather(1, kept)
            totals = children.gather(1, kept)
            tokens = torch.cat([tokens[users, parents], chosen[:, :, None]], dim=2)
            if step + 1 < length:
                cache.select(parents)
                state = model.step(chosen, cache)
        order = totals.argsort(dim=1, descending=True, stable=True)
        return GeneratedLists(tokens[users, order], totals.gather(1, order))


Strategy = Greedy | Sampling | Beam


def _likeliest(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The largest scores [B, W, width] and their tokens; the first is that of greedy generation."""
    values, tokens = scores.topk(width)
    first = scores.argmax(dim=-1, keepdim=True)
    # Among equal scores topk may have put it elsewhere, or dropped it: move it to the front.
    index = (tokens == first).int().argmax(dim=-1, keepdim=True)
    tokens.scatter_(-1, index, tokens[..., :1].clone())
    tokens[..., :1] = first
    return values, tokens


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
