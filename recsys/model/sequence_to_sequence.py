"""The sequence-to-sequence Transformer of 2017: encode a history, generate what follows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from recsys.config.model import TransformerConfig
from recsys.errors import InputError
from recsys.model.attention import KeysValues, MultiHeadAttention, padding_mask
from recsys.model.embeddings import ItemEmbeddings
from recsys.model.encoder import Encoder, Residual, feed_forward
from recsys.model.heads import DotProductHead, HistoryRepresentation
from recsys.model.models import Model, ModelInputs


class EncodedHistory(NamedTuple):
    """What a decoder reads of B histories."""

    keys_values: list[KeysValues]
    """Of the encoder's states, for each block of the decoder [B, H, S, d]."""
    mask: Tensor
    """Which of them are real [B, 1, 1, S]."""


Generated = Sequence[list[Tensor]]
"""Keys and values of the tokens of W lists for each user so far, by block [B · W, H, t, d]; none
before the first."""


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the encoder's states, the feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim, residual = config.embedding_dim, (config.embedding_dim, config.dropout, config.norm)
        self.attention_norm = Residual(*residual)
        self.attention = MultiHeadAttention(dim, config.num_heads)
        self.cross_norm = Residual(*residual)
        self.cross_attention = MultiHeadAttention(dim, config.num_heads)
        self.feed_forward_norm = Residual(*residual)
        self.feed_forward = feed_forward(config)

    def forward(
        self, x: Tensor, history: KeysValues, mask: Tensor, generated: list[Tensor] | None = None
    ) -> Tensor:
        """[N, n, D] to [N, n, D]; each position sees those up to itself, and the history.

        With ``generated``, N lists have their next token each, n = 1; N / B share a history.
        """

        def attend_to_history(x: Tensor) -> Tensor:
            rows = x.reshape(len(mask), -1, x.shape[-1])
            return self.cross_attention(rows, history, mask).view_as(x)

        causal = generated is None
        x = self.attention_norm(x, lambda x: self.attention(x, causal=causal, past=generated))
        x = self.cross_norm(x, attend_to_history)
        return self.feed_forward_norm(x, self.feed_forward)


class Decoder(Encoder):
    """The layers of an encoder, of `DecoderBlock`s; positions count from the first token."""

    def forward(  # type: ignore[override]
        self, embedded: Tensor, encoded: EncodedHistory, generated: Generated | None = None
    ) -> Tensor:
        """Hidden states [N, n, D] of embedded tokens [N, n, D]; each sees those up to itself.

        With ``generated`` they are the next token of each list, n = 1, which it then has too.
        """
        first = generated[0][0].shape[2] if generated and generated[0] else 0
        if self.positions is not None:
            steps = torch.arange(first, first + embedded.shape[1], device=embedded.device)
            embedded = embedded + self.positions(steps)
        x = self.dropout(embedded)
        past: Sequence[list[Tensor] | None] = generated or [None] * len(self.blocks)
        for block, history, own in zip(self.blocks, encoded.keys_values, past, strict=True):
            x = block(x, history, encoded.mask, own)
        return self.norm(x)


class SequenceToSequence(Model):
    """Maps item tokens to item tokens, at most ``max_generated`` for a user.

    The stacks are initialised by Xavier's rule, as published. The item embeddings are tied: encoder
    and decoder read them, and the decoder's states are multiplied with them.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        num_items: int,
        embedding_dim: int,
        encoder: Encoder,
        decoder: Decoder,
        max_generated: int,
    ) -> None:
        super().__init__()
        self.max_generated = max_generated
        self.items = ItemEmbeddings(num_items, embedding_dim)
        self.begin = nn.Parameter(torch.empty(embedding_dim))
        self.encoder = encoder
        self.decoder = decoder
        self.head = DotProductHead()
        for weight in (*encoder.blocks.parameters(), *decoder.blocks.parameters()):
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)
        nn.init.normal_(self.begin, std=0.02)
        self.items.draw()

    def encode(self, items: Tensor, lengths: Tensor) -> EncodedHistory:
        """Read right-padded item tokens [B, S] with lengths [B] ≥ 1."""
        states = self.encoder(self.embed(items), lengths)
        blocks = [cast("DecoderBlock", block) for block in self.decoder.blocks]
        keys_values = [block.cross_attention.keys_values(states) for block in blocks]
        return EncodedHistory(keys_values, padding_mask(lengths, items.shape[1])[:, None, None])

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        return self.teacher_forced(inputs, inputs.items[:, :1])[0]

    def teacher_forced(
        self, inputs: ModelInputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """The decoder's states at the targets [B, n], each predicted after the true ones before."""
        previous = targets[:, :-1]
        states = self.decode(self.encode(inputs.items, inputs.lengths), previous)
        seen = torch.cat([inputs.items, previous], dim=1)
        return self.head.represent_history(states, states), seen

    def decode(
        self, encoded: EncodedHistory, tokens: Tensor, generated: Generated | None = None
    ) -> Tensor:
        """The decoder's states [B, t + 1, D] before and after each of the tokens [B, t].

        With ``generated`` there is no token yet, t = 0.
        """
        begin = (self.begin * math.sqrt(self.items.embedding_dim)).expand(len(tokens), 1, -1)
        return self.decoder(torch.cat([begin, self.embed(tokens)], dim=1), encoded, generated)

    def step(self, encoded: EncodedHistory, tokens: Tensor, generated: Generated) -> Tensor:
        """The decoder's states [B, W, D] after one more token of each list [B, W]."""
        states: Tensor = self.decoder(self.embed(tokens.flatten()[:, None]), encoded, generated)
        return states.view(*tokens.shape, -1)


# --- Generation -----------------------------------------------------------------------------------
# A strategy does not repeat an item unless repeats are allowed; where no item is left, PAD fills
# the end. The log-probability of a list is the sum of its tokens', each among the items allowed
# then.

_PAD = 0


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
    ) -> tuple[Tensor, Tensor]:
        """Generate W lists for each of B users [B, W, n], by a model in evaluation mode.

        ``allowed`` [B, I + 1] says by item token whether the item may be generated; ``repeats``,
        whether more than once. The best list comes first; the log-probabilities are [B, W].
        """
        users = torch.arange(len(allowed), device=allowed.device)[:, None]
        tokens = torch.empty(len(allowed), 1, 0, dtype=torch.int64, device=allowed.device)
        totals = torch.zeros(len(allowed), 1, device=allowed.device)
        generated: Generated = [[] for _ in encoded.keys_values]
        state = model.decode(encoded, tokens[:, 0], generated)
        for step in range(length):
            scores = _next_log_probabilities(model, state, tokens, allowed, repeats)
            parents, chosen = self.extend(scores, totals)
            lists = (users * totals.shape[1] + parents).flatten()
            generated = [[side[lists] for side in sides] for sides in generated]
            totals = totals[users, parents] + scores[users, parents, chosen]
            tokens = torch.cat([tokens[users, parents], chosen[:, :, None]], dim=2)
            if step + 1 < length:
                state = model.step(encoded, chosen, generated)
        order = totals.argsort(dim=1, descending=True, stable=True)
        return tokens[users, order], totals[users, order]

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
    top_p: float | None = None
    """Draw from the fewest items whose probabilities add up to this; from all if None."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature={self.temperature}: must be above 0 and finite")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: must be above 0 and at most 1")

    def extend(self, scores: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        # Relative to the largest: a temperature near 0 then makes no positive infinity, nor 0 / 0.
        cooled = (scores - scores.amax(dim=-1, keepdim=True)) / max(self.temperature, 1e-30)
        best, tokens = torch.softmax(cooled, dim=-1).sort(dim=-1, descending=True, stable=True)
        if self.top_p is not None:  # an item stays if those before it add up to less
            before = best.cumsum(dim=-1) - best
            enough = before >= self.top_p
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
