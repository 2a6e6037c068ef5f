"""The sequence-to-sequence Transformer: encode a history, generate the purchases that follow."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recsys.model.decoder import Decoder, DecoderCache, EncodedHistory
from recsys.model.encoder import Encoder
from recsys.model.heads import DotProductHead
from recsys.model.item_embeddings import ItemEmbeddings
from recsys.model.model_inputs import ModelInputs
from recsys.model.protocols import HistoryRepresentation, Model


class SequenceToSequence(Model):
    """Maps item tokens to item tokens.

    The stacks are initialised by Xavier's rule, as published. The item embeddings are tied: encoder
    and decoder read them, and the decoder's states are multiplied with them. Row 0 (PAD) stays zero
    and is never generated.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Args:
        num_items: I.
        embedding_dim: D.
        encoder: reads the history; not causal.
        decoder: generates.
        max_generated: the most purchases that it can generate for a user.
    """

    items: ItemEmbeddings

    def __init__(
        self,
        num_items: int,
        embedding_dim: int,
        encoder: Encoder,
        decoder: Decoder,
        max_generated: int,
    ) -> None:
        super().__init__()
        self.num_items = num_items
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
        self.items.draw(std=0.02)

    def encode(self, items: Tensor, lengths: Tensor) -> EncodedHistory:
        """Read right-padded item tokens [B, S] with lengths [B] ≥ 1."""
        return EncodedHistory(self.encoder(self.embed(items), lengths), lengths)

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """The decoder's state before its first token, [B, 1, D]: it scores the next item."""
        return (self.decode(self.encode(inputs.items, inputs.lengths), inputs.items[:, :0]),)

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
        return (states,), torch.cat([inputs.items, previous], dim=1)

    def decode(self, encoded: EncodedHistory, tokens: Tensor) -> Tensor:
        """The decoder's states [B, t + 1, D] before and after each of the tokens [B, t]."""
        begin = self._begin().expand(len(tokens), 1, -1)
        return self.decoder(torch.cat([begin, self.embed(tokens)], dim=1), encoded)  # type: ignore[no-any-return]

    def start(self, encoded: EncodedHistory) -> tuple[Tensor, DecoderCache]:
        """The decoder's state before the first token, [B, 1, D], and its cache."""
        cache = self.decoder.start(encoded)
        return self.decoder.step(self._begin().expand(len(encoded.states), 1, -1), cache), cache

    def step(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """The decoder's states [B, W, D] after one more token of each hypothesis [B, W]."""
        return self.decoder.step(self.embed(tokens), cache)

    def embed(self, items: Tensor) -> Tensor:
        """The embeddings of item tokens as encoder and decoder read them: scaled by √D."""
        return self.items(items) * math.sqrt(self.items.embedding_dim)  # type: ignore[no-any-return]

    def _begin(self) -> Tensor:
        return self.begin * math.sqrt(self.items.embedding_dim)
