"""The models: item embedding, encoder and head; and how a config becomes one."""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor, nn

from recsys.config import (
    Cosine,
    DotProduct,
    FactorisationMachineConfig,
    HSTUConfig,
    MaskedItemConfig,
    MixtureOfLogits,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TransformerConfig,
)
from recsys.model.blocks import (
    BlockSettings,
    DecoderBlock,
    EncoderBlock,
    Gated,
    PostNorm,
    PreNorm,
    SwiGLU,
)
from recsys.model.decoder import Decoder
from recsys.model.encoder import Encoder
from recsys.model.factorisation import FactorisationMachine
from recsys.model.features import FeatureEmbeddings
from recsys.model.heads import CosineHead, DotProductHead, HistorySide, MixtureOfLogitsHead
from recsys.model.hstu import HSTUBlock, HSTUEncoder, TimesRead
from recsys.model.inputs import Inputs
from recsys.model.items import ItemEmbeddings, ItemFeatureEmbeddings
from recsys.model.masked import MaskedRecommender
from recsys.model.positions import (
    LearnedPositions,
    NoPositions,
    RotaryPositions,
    SinusoidalPositions,
)
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.model.target_attention import TargetAttentionHead

Head = DotProductHead | MixtureOfLogitsHead | TargetAttentionHead


class SequenceRecommender(nn.Module):
    """Item tokens in; what the head needs to score candidates out.

    Row 0 of the item embedding is PAD: it stays zero and is never a candidate worth scoring.

    Features of interactions and of users are added to the input embeddings, those of a user at
    every position: so they reach, through the residual connections, the state that candidates are
    scored by, wherever it is, and each attention on the way can heed them.

    Args:
        num_items: those that have embeddings of their own.
        embedding_dim: D.
        encoder: input embeddings to states.
        head: states and input embeddings to scores.
        features: what those of the items add to their embeddings.
        inputs: what those of interactions and users add to the input embeddings.
    """

    def __init__(
        self,
        num_items: int,
        embedding_dim: int,
        encoder: Encoder | HSTUEncoder,
        head: Head,
        features: ItemFeatureEmbeddings | None = None,
        inputs: FeatureEmbeddings | None = None,
    ) -> None:
        super().__init__()
        self.items = ItemEmbeddings(num_items, embedding_dim, features)
        self.inputs = inputs
        self.num_items = self.items.num_items
        self.encoder = encoder
        self.head = head
        nn.init.normal_(self.items.weight, std=0.02)
        with torch.no_grad():
            self.items.weight[0] = 0

    @property
    def times(self) -> TimesRead:
        """What the encoder reads of times."""
        return self.encoder.times if isinstance(self.encoder, HSTUEncoder) else "none"

    def forward(self, inputs: Inputs) -> HistorySide:
        """The history side of the head.

        Raises:
            ValueError: there are no features, or times, and they are to be read.
        """
        embedded = self._embed(inputs)
        states = self.encoder(embedded, inputs.lengths, inputs.times)
        return self.head.history_side(states, embedded)

    def newest(self, inputs: Inputs) -> HistorySide:
        """`forward`, right for scores at the last item of each history alone, and cheaper."""
        if self.head.reads_older_states:
            return self.forward(inputs)
        embedded = self._embed(inputs)
        newest = self.encoder.newest(embedded, inputs.lengths, inputs.times)
        return self.head.history_side(newest[:, None].expand_as(embedded), embedded)

    def teacher_forced(self, inputs: Inputs, targets: Tensor) -> tuple[HistorySide, Tensor]:
        """What is foretold of the targets [B, L] that follow each of the items [B, L].

        Features, too, are of the items: nothing is read of a target.

        Returns:
            The history side; and item tokens [B, L] whose first 1 + t were had before target t.
        """
        return self(inputs), inputs.items

    def _embed(self, inputs: Inputs) -> Tensor:
        """What the encoder reads, and the head's memory [B, L, D]."""
        embedded: Tensor = self.items(inputs.items)
        if self.inputs is not None:
            if inputs.features is None:
                raise ValueError("this model reads features of its inputs, and there are none")
            embedded = embedded + self.inputs(*inputs.features)
        return embedded * math.sqrt(self.items.embedding_dim)


Model = SequenceRecommender | MaskedRecommender | SequenceToSequence | FactorisationMachine
"""What can be trained. All have item embeddings and a head, turn histories into what the head needs
(`forward`; `newest` for scores at the last item alone), and targets too where they are known
(`teacher_forced`)."""


@overload
def build_model(
    config: NextItemConfig | HSTUConfig,
    num_items: int,
    features: ItemFeatureEmbeddings | None = None,
    inputs: FeatureEmbeddings | None = None,
) -> SequenceRecommender: ...
@overload
def build_model(config: MaskedItemConfig, num_items: int) -> MaskedRecommender: ...
@overload
def build_model(config: SequenceToSequenceConfig, num_items: int) -> SequenceToSequence: ...
@overload
def build_model(config: FactorisationMachineConfig, num_items: int) -> FactorisationMachine: ...
@overload
def build_model(
    config: ModelConfig,
    num_items: int,
    features: ItemFeatureEmbeddings | None = None,
    inputs: FeatureEmbeddings | None = None,
) -> Model: ...


def build_model(
    config: ModelConfig,
    num_items: int,
    features: ItemFeatureEmbeddings | None = None,
    inputs: FeatureEmbeddings | None = None,
) -> Model:
    """A freshly initialised model; seed torch before calling.

    Args:
        config: of the model.
        num_items: those that have embeddings of their own.
        features: what the item features of the config add to them, if it has any.
        inputs: what its features of interactions and users add to the inputs, if it has any.
    """
    dim = config.embedding_dim
    if isinstance(config, FactorisationMachineConfig):
        return FactorisationMachine(num_items, dim, config.dropout)
    if isinstance(config, SequenceToSequenceConfig):
        settings, longest = _block_settings(config, config.max_generated), config.max_generated
        encoder = _encoder(config, config.num_encoder_blocks, causal=False)
        blocks = [DecoderBlock(settings) for _ in range(config.num_decoder_blocks)]
        positions = _positions(config.positions, longest, dim)
        decoder = Decoder(positions, blocks, dim, config.dropout)
        return SequenceToSequence(num_items, dim, encoder, decoder, longest)
    if isinstance(config, MaskedItemConfig):
        encoder = _encoder(config, config.num_blocks, causal=False, appended=1)
        return MaskedRecommender(num_items, dim, encoder)
    stack: Encoder | HSTUEncoder
    if isinstance(config, HSTUConfig):
        stack = _hstu_encoder(config)
    else:
        stack = _encoder(config, config.num_blocks, causal=True)
    return SequenceRecommender(num_items, dim, stack, _head(config), features, inputs)


def _block_settings(config: TransformerConfig, longest: int) -> BlockSettings:
    dim = config.embedding_dim
    width = dim if config.wide_heads else dim // config.num_heads
    norms: dict[str, type[PreNorm | PostNorm]]
    norms = {"pre": PreNorm, "post": PostNorm, "gated": Gated}
    activations = {"gelu": nn.GELU, "relu": nn.ReLU, "swiglu": SwiGLU}
    return BlockSettings(
        dim,
        config.num_heads,
        config.feed_forward_dim,
        config.dropout,
        norm=norms[config.norm],
        activation=activations[config.activation],
        wide_heads=config.wide_heads,
        rotary=RotaryPositions(longest, width) if config.positions == "rotary" else None,
    )


def _positions(kind: str, longest: int, dim: int) -> nn.Module:
    kinds = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}
    return kinds[kind](longest, dim) if kind in kinds else NoPositions()


def _encoder(
    config: TransformerConfig, num_blocks: int, *, causal: bool, appended: int = 0
) -> Encoder:
    longest, dim = config.max_sequence_length + appended, config.embedding_dim
    settings = _block_settings(config, longest)
    blocks = [EncoderBlock(settings) for _ in range(num_blocks)]
    positions = _positions(config.positions, longest, dim)
    return Encoder(positions, blocks, dim, config.dropout, causal=causal)


def _hstu_encoder(config: HSTUConfig) -> HSTUEncoder:
    dim, longest, dropout = config.embedding_dim, config.max_sequence_length, config.dropout
    timed = config.times != "none"
    blocks = [
        HSTUBlock(dim, config.num_heads, longest, dropout, timed=timed)
        for _ in range(config.num_blocks)
    ]
    positions = _positions(config.positions, longest, dim)
    return HSTUEncoder(positions, blocks, dim, dropout, config.times)


def _head(config: NextItemConfig | HSTUConfig) -> Head:
    head, dim = config.head, config.embedding_dim
    if isinstance(head, DotProduct):
        return DotProductHead()
    if isinstance(head, Cosine):
        return CosineHead(head.temperature)
    if isinstance(head, MixtureOfLogits):
        return MixtureOfLogitsHead(dim, head.components, head.component_dim, head.temperature)
    shortest, longest = head.half_life
    steps = max(head.num_heads - 1, 1)
    half_lives = [
        shortest * (longest / shortest) ** (step / steps) for step in range(head.num_heads)
    ]
    return TargetAttentionHead(
        dim,
        head.head_dim,
        half_lives,
        memory=head.memory,
        pooling=head.pooling,
        dropout=config.dropout,
    )
