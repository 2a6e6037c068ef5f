"""Build the model that a config describes."""

from torch import nn

from recsys.config.model import (
    AveragedConfig,
    FactorisationMachineConfig,
    HSTUConfig,
    KernelAttention,
    MaskedItemConfig,
    ModelConfig,
    SequenceToSequenceConfig,
    TargetAttention,
    TransformerConfig,
)
from recsys.model.attention import RotaryPositions
from recsys.model.embeddings import (
    FeatureEmbeddings,
    ItemEmbeddings,
    ItemFeatureEmbeddings,
    SinusoidalPositions,
)
from recsys.model.encoder import Encoder, EncoderBlock
from recsys.model.heads import DotProductHead, Head, KernelAttentionHead, TargetAttentionHead
from recsys.model.hstu import HSTUBlock, HSTUEncoder
from recsys.model.models import (
    AveragedModel,
    FactorisationMachine,
    MaskedItemModel,
    Model,
    NextItemModel,
)
from recsys.model.sequence_to_sequence import Decoder, DecoderBlock, SequenceToSequence


def build_model(
    config: ModelConfig,
    num_items: int,
    features: ItemFeatureEmbeddings | None = None,
    inputs: FeatureEmbeddings | None = None,
) -> Model:
    """Build a model with new weights; seed torch before calling.

    ``num_items`` have embeddings of their own; ``features`` embeds the item features of the config,
    ``inputs`` those of interactions and users, if it has any.
    """
    if isinstance(config, AveragedConfig):
        return AveragedModel([build_model(member.model, num_items) for member in config.members])
    dim, dropout, longest = config.embedding_dim, config.dropout, config.max_sequence_length
    if isinstance(config, FactorisationMachineConfig):
        return FactorisationMachine(num_items, dim, dropout)
    if isinstance(config, SequenceToSequenceConfig):
        encoder = _encoder(config, config.num_encoder_blocks, longest, causal=False)
        blocks = [DecoderBlock(config) for _ in range(config.num_decoder_blocks)]
        positions = _positions(config.positions, config.max_generated, dim)
        decoder = Decoder(positions, blocks, dim, dropout)
        return SequenceToSequence(num_items, dim, encoder, decoder, config.max_generated)
    if isinstance(config, MaskedItemConfig):  # a mask follows the history
        encoder = _encoder(config, config.num_blocks, longest + 1, causal=False)
        return MaskedItemModel(num_items, dim, encoder)
    if isinstance(config, HSTUConfig):
        stack = [
            HSTUBlock(dim, config.num_heads, longest, dropout, timed=config.times != "none")
            for _ in range(config.num_blocks)
        ]
        positions = _positions("learned", longest, dim)
        encoder = HSTUEncoder(positions, stack, dim, dropout, times=config.times)
    else:
        encoder = _encoder(config, config.num_blocks, longest, causal=True)
    head: Head = DotProductHead()
    if isinstance(config.head, TargetAttention):
        head = TargetAttentionHead(dim, config.head, dropout)
    elif isinstance(config.head, KernelAttention):
        head = KernelAttentionHead(dim, config.head, dropout)
    return NextItemModel(ItemEmbeddings(num_items, dim, features), encoder, head, inputs)


def _encoder(config: TransformerConfig, num_blocks: int, longest: int, *, causal: bool) -> Encoder:
    dim, rotary = config.embedding_dim, None
    if config.positions == "rotary":  # of all blocks, since it learns nothing
        rotary = RotaryPositions(longest, dim // config.num_heads)
    blocks = [EncoderBlock(config, rotary) for _ in range(num_blocks)]
    positions = _positions(config.positions, longest, dim)
    return Encoder(positions, blocks, dim, config.dropout, causal=causal)


def _positions(kind: str, longest: int, dim: int) -> nn.Module | None:
    if kind == "learned":
        positions = nn.Embedding(longest, dim)
        nn.init.normal_(positions.weight, std=0.02)
        return positions
    return SinusoidalPositions(longest, dim) if kind == "sinusoidal" else None
