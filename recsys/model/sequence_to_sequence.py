"""The sequence-to-sequence Transformer of 2017: encode a history, generate what follows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from recsys.model.attention import attend, padding_mask
from recsys.model.embeddings import ItemEmbeddings
from recsys.model.encoder import BlockSettings, Dropout, Encoder
from recsys.model.heads import DotProductHead, HistoryRepresentation
from recsys.model.models import Model, ModelInputs

KeysValues = tuple[Tensor, Tensor]


class EncodedHistory(NamedTuple):
    """The encoder's output, which the decoder attends to."""

    states: Tensor
    """Hidden states [B, S, D]."""
    mask: Tensor
    """Which of them are real, [B, 1, 1, S]."""


@dataclass(slots=True)
class DecoderCache:
    """What generating the next token of W lists for each user need not compute again, by block."""

    history: list[KeysValues]
    """Of the encoder's states, [B, H, S, d] each."""
    generated: list[KeysValues]
    """Of the tokens generated so far, [B, W, H, t, d] each."""
    mask: Tensor
    """See `EncodedHistory.mask`."""

    def select(self, parents: Tensor) -> None:
        """Continue from lists given by number [B, W'], some perhaps several times."""
        users = torch.arange(len(parents), device=parents.device)[:, None]
        self.generated = [
            (keys[users, parents], values[users, parents]) for keys, values in self.generated
        ]


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the encoder's states, the feed-forward network."""

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        self.attention_norm = settings.residual()
        self.attention = settings.attention()
        self.cross_norm = settings.residual()
        self.cross_attention = settings.attention()
        self.feed_forward_norm = settings.residual()
        self.feed_forward = settings.feed_forward()

    def forward(self, x: Tensor, encoded: EncodedHistory) -> Tensor:
        """[B, n, D] to [B, n, D]; each position sees those up to itself, and the history."""
        x = self.attention_norm(x, lambda x: self.attention(x, causal=True))
        x = self.cross_norm(x, lambda x: self.cross_attention(x, encoded.states, encoded.mask))
        return self.feed_forward_norm(x, self.feed_forward)  # type: ignore[no-any-return]

    def step(
        self, x: Tensor, history: KeysValues, generated: KeysValues, mask: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """`forward` for the latest token of each list only; see `DecoderCache`.

        Returns:
            [B, W, D] of [B, W, D]; and ``generated`` with that token.
        """
        grown = generated

        def attend_to_generated(x: Tensor) -> Tensor:
            nonlocal grown
            tokens = x.flatten(0, 1)[:, None]  # each list is a sequence of its own
            latest = [side.unflatten(0, x.shape[:2]) for side in self.attention.keys_values(tokens)]
            keys, values = (
                torch.cat(sides, dim=3) for sides in zip(generated, latest, strict=True)
            )
            grown = keys, values
            queries = self.attention.queries(tokens)
            attended = attend(queries, keys.flatten(0, 1), values.flatten(0, 1))
            return self.attention.join(attended).view_as(x)

        def attend_to_history(x: Tensor) -> Tensor:  # which all lists share
            attended = attend(self.cross_attention.queries(x), *history, mask)
            return self.cross_attention.join(attended)

        x = self.cross_norm(self.attention_norm(x, attend_to_generated), attend_to_history)
        return self.feed_forward_norm(x, self.feed_forward), grown


class Decoder(nn.Module):
    """Positions, dropout, a stack of blocks, a last norm. Positions count from the first token.

    Args: see `Encoder`.
    """

    def __init__(
        self,
        positions: nn.Module,
        blocks: Iterable[DecoderBlock],
        embedding_dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, embedded: Tensor, encoded: EncodedHistory) -> Tensor:
        """Hidden states [B, n, D] of embedded tokens [B, n, D]; each sees those up to itself."""
        steps = torch.arange(embedded.shape[1], device=embedded.device)
        x = self.dropout(embedded + self.positions(steps))
        for block in self.blocks:
            x = block(x, encoded)
        return self.norm(x)  # type: ignore[no-any-return]

    def start(self, encoded: EncodedHistory) -> DecoderCache:
        """The cache before the first token, of one list for each user."""
        history = [
            block.cross_attention.keys_values(encoded.states)
            for block in cast("Iterable[DecoderBlock]", self.blocks)
        ]
        nothing = history[0][0][:, None, :, :0]
        return DecoderCache(history, [(nothing, nothing)] * len(history), encoded.mask)

    def step(self, embedded: Tensor, cache: DecoderCache) -> Tensor:
        """`forward` for the next token of each list only, [B, W, D] to [B, W, D]."""
        position = torch.tensor(cache.generated[0][0].shape[3], device=embedded.device)
        x = self.dropout(embedded + self.positions(position))
        for number, block in enumerate(cast("Iterable[DecoderBlock]", self.blocks)):
            history, generated = cache.history[number], cache.generated[number]
            x, cache.generated[number] = block.step(x, history, generated, cache.mask)
        return self.norm(x)  # type: ignore[no-any-return]


class SequenceToSequence(Model):
    """Maps item tokens to item tokens.

    The stacks are initialised by Xavier's rule, as published. The item embeddings are tied: encoder
    and decoder read them, and the decoder's states are multiplied with them.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Args:
        num_items: I.
        embedding_dim: D.
        encoder: reads the history; not causal.
        decoder: generates.
        max_generated: the most purchases that it can generate for a user.
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
        return EncodedHistory(states, padding_mask(lengths, items.shape[1])[:, None, None])

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """The decoder's state before its first token, [B, 1, D]: it scores the next item."""
        return self.teacher_forced(inputs, inputs.items[:, :1])[0]

    def teacher_forced(
        self, inputs: ModelInputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """The decoder's states at the targets [B, n], each predicted after the true ones before it.

        Returns:
            The states [B, n, D]; and item tokens [B, S + n - 1] of which the first S + t were seen
            before target t.
        """
        previous = targets[:, :-1]
        states = self.decode(self.encode(inputs.items, inputs.lengths), previous)
        seen = torch.cat([inputs.items, previous], dim=1)
        return self.head.represent_history(states, states), seen

    def decode(self, encoded: EncodedHistory, tokens: Tensor) -> Tensor:
        """The decoder's states [B, t + 1, D] before and after each of the tokens [B, t]."""
        embedded = torch.cat([self._begin(len(tokens)), self.embed(tokens)], dim=1)
        return self.decoder(embedded, encoded)  # type: ignore[no-any-return]

    def start(self, encoded: EncodedHistory) -> tuple[Tensor, DecoderCache]:
        """The decoder's state before the first token, [B, 1, D], and its cache."""
        cache = self.decoder.start(encoded)
        return self.decoder.step(self._begin(len(encoded.states)), cache), cache

    def step(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """The decoder's states [B, W, D] after one more token of each list [B, W]."""
        return self.decoder.step(self.embed(tokens), cache)

    def _begin(self, count: int) -> Tensor:
        return (self.begin * math.sqrt(self.items.embedding_dim)).expand(count, 1, -1)
