"""Build the model that a config describes."""

from __future__ import annotations

from typing import overload

from torch import nn

from recsys.config import (
    AveragedConfig,
    DotProduct,
    FactorisationMachineConfig,
    HSTUConfig,
    MaskedItemConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TransformerConfig,
)
from recsys.model.attention import RotaryPositions
from recsys.model.averaged import AveragedModel
from recsys.model.embeddings import (
    FeatureEmbeddings,
    ItemEmbeddings,
    ItemFeatureEmbeddings,
    LearnedPositions,
    NoPositions,
    SinusoidalPositions,
)
from recsys.model.encoder import BlockSettings, Encoder, EncoderBlock
from recsys.model.heads import DotProductHead, Head, TargetAttentionHead
from recsys.model.hstu import HSTUBlock, HSTUEncoder
from recsys.model.models import FactorisationMachine, MaskedItemModel, Model, NextItemModel
from recsys.model.sequence_to_sequence import Decoder, DecoderBlock, SequenceToSequence


@overload
def build_model(
    config: NextItemConfig | HSTUConfig,
    num_items: int,
    features: ItemFeatureEmbeddings | None = None,
    inputs: FeatureEmbeddings | None = None,
) -> NextItemModel: ...
@overload
def build_model(config: SequenceToSequenceConfig, num_items: int) -> SequenceToSequence: ...
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
    """Build a model with new weights; seed torch before calling.

    Args:
        config: the configuration of the model.
        num_items: the number of items that have embeddings of their own.
        features: embeds the item features of the config, if it has any.
        inputs: embeds its features of interactions and users, if it has any.
    """
    if isinstance(config, AveragedConfig):
        return AveragedModel([build_model(member.model, num_items) for member in config.members])
    dim, dropout = config.embedding_dim, config.dropout
    if isinstance(config, FactorisationMachineConfig):
        return FactorisationMachine(num_items, dim, dropout)
    if isinstance(config, SequenceToSequenceConfig):
        settings, longest = _block_settings(config, config.max_generated), config.max_generated
        encoder = _encoder(config, config.num_encoder_blocks, causal=False)
        blocks = [DecoderBlock(settings) for _ in range(config.num_decoder_blocks)]
        decoder = Decoder(_positions(config.positions, longest, dim), blocks, dim, dropout)
        return SequenceToSequence(num_items, dim, encoder, decoder, longest)
    if isinstance(config, MaskedItemConfig):
        encoder = _encoder(config, config.num_blocks, causal=False, mask_tokens=1)
        return MaskedItemModel(num_items, dim, encoder)
    if isinstance(config, HSTUConfig):
        stack: Encoder = _hstu(config)
    else:
        stack = _encoder(config, config.num_blocks, causal=True)
    head = _head(config)
    return NextItemModel(ItemEmbeddings(num_items, dim, features), stack, head, inputs)


def _block_settings(config: TransformerConfig, longest: int) -> BlockSettings:
    dim, rotary = config.embedding_dim, None
    if config.positions == "rotary":
        rotary = RotaryPositions(longest, dim // config.num_heads)
    return BlockSettings(
        dim,
        config.num_heads,
        config.feed_forward_dim,
        config.dropout,
        norm=config.norm,
        activation=config.activation,
        rotary=rotary,
        filtered=isinstance(config, NextItemConfig) and config.filter,
    )


def _positions(kind: str, longest: int, dim: int) -> nn.Module:
    kinds = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}
    return kinds[kind](longest, dim) if kind in kinds else NoPositions()


def _encoder(
    config: TransformerConfig, num_blocks: int, *, causal: bool, mask_tokens: int = 0
) -> Encoder:
    longest, dim = config.max_sequence_length + mask_tokens, config.embedding_dim
    settings = _block_settings(config, longest)
    blocks = [EncoderBlock(settings) for _ in range(num_blocks)]
    positions = _positions(config.positions, longest, dim)
    return Encoder(positions, blocks, dim, config.dropout, causal=causal)


def _hstu(config: HSTUConfig) -> HSTUEncoder:
    dim, longest, dropout = config.embedding_dim, config.max_sequence_length, config.dropout
    timed = config.times != "none"
    blocks = [
        HSTUBlock(dim, config.num_heads, longest, dropout, timed=timed)
        for _ in range(config.num_blocks)
    ]
    return HSTUEncoder(LearnedPositions(longest, dim), blocks, dim, dropout, config.times)


def _head(config: NextItemConfig | HSTUConfig) -> Head:
    head, dim = config.head, config.embedding_dim
    if isinstance(head, DotProduct):
        return DotProductHead()
    return TargetAttentionHead(
        dim, head.head_dim, head.half_lives, pooling=head.pooling, dropout=config.dropout
    )
