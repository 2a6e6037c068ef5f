"""The Transformer as a whole: the encoder reads a history, the decoder writes what comes after."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recsys.model.decoder import Decoder, DecoderCache, Memory
from recsys.model.encoder import Encoder
from recsys.model.heads import DotProductHead, HistoryRepresentation
from recsys.model.item_embeddings import ItemEmbeddings
from recsys.model.model_inputs import Inputs


class SequenceToSequence(nn.Module):
    """Item tokens in, item tokens out.

    The stacks start by Xavier's rule, as published. Items have one embedding, tied: it is what
    encoder and decoder read, and what the decoder's states are multiplied with. Row 0 (PAD) stays
    zero and is never written.

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
        nn.init.normal_(self.items.weight, std=0.02)
        with torch.no_grad():
            self.items.weight[0] = 0

    def remember(self, items: Tensor, lengths: Tensor) -> Memory:
        """Read right-padded item tokens [B, S] with lengths [B] ≥ 1."""
        return Memory(self.encoder(self.embed(items), lengths), lengths)

    def forward(self, inputs: Inputs) -> HistoryRepresentation:
        """The decoder's state before its first token: what scoring the next item needs.

        It is given for every position, [B, S, D], so that the head finds it at the last one.
        """
        items = inputs.items
        state = self.write(self.remember(items, inputs.lengths), items[:, :0])
        return (state.expand(-1, items.shape[1], -1),)

    newest = forward

    def teacher_forced(
        self, inputs: Inputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """What is foretold of the targets [B, n] when each is written after the true ones before.

        Returns:
            The history side [B, n, D]; and the item tokens [B, S + n - 1] whose first S + t are had
            before target t.
        """
        written = targets[:, :-1]
        side = (self.write(self.remember(inputs.items, inputs.lengths), written),)
        return side, torch.cat([inputs.items, written], dim=1)

    def write(self, memory: Memory, tokens: Tensor) -> Tensor:
        """The decoder's states [B, t + 1, D] before and after each of the written tokens [B, t]."""
        begin = self._begin().expand(len(tokens), 1, -1)
        return self.decoder(torch.cat([begin, self.embed(tokens)], dim=1), memory)  # type: ignore[no-any-return]

    def start(self, memory: Memory) -> tuple[Tensor, DecoderCache]:
        """The decoder's state before the first token, [B, 1, D], and its cache."""
        cache = self.decoder.start(memory)
        return self.decoder.step(self._begin().expand(len(memory.states), 1, -1), cache), cache

    def step(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """The decoder's states [B, W, D] after one more token of each hypothesis [B, W]."""
        return self.decoder.step(self.embed(tokens), cache)

    def embed(self, items: Tensor) -> Tensor:
        """Embeddings of item tokens, as encoder and decoder read them: scaled by √D."""
        return self.items(items) * math.sqrt(self.items.embedding_dim)  # type: ignore[no-any-return]

    def _begin(self) -> Tensor:
        return self.begin * math.sqrt(self.items.embedding_dim)
