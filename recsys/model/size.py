"""The size of a model, counted from its config before anything is built."""

from __future__ import annotations

from collections.abc import Mapping

from recsys.config import (
    AveragedConfig,
    FactorisationMachineConfig,
    FeatureReaderConfig,
    HSTUConfig,
    MaskedItemConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TargetAttention,
    TransformerConfig,
    VectorFeature,
)


def count_weights(config: ModelConfig, num_items: int, vector_dims: Mapping[str, int]) -> int:
    """Count the matrices of a model: nearly all of its weights, without biases and norms.

    Of the features, only the projections of vectors count.

    Args:
        config: the configuration of the model.
        num_items: the number of items, I.
        vector_dims: the length of the vectors that it reads, by column.
    """
    if isinstance(config, AveragedConfig):
        return sum(count_weights(each.model, num_items, {}) for each in config.members)
    dim = config.embedding_dim
    items = (num_items + 1) * dim
    if isinstance(config, FeatureReaderConfig):
        items = (items if config.item_ids else dim) + _vectors(config, vector_dims)
    if isinstance(config, FactorisationMachineConfig):
        return 3 * items  # as a candidate, as the last item, and as one of all
    learned = isinstance(config, HSTUConfig) or config.positions not in ("rotary", "none")
    positions = config.max_sequence_length * dim if learned else 0
    return items + positions + _blocks(config) + _head(config)


def _vectors(config: NextItemConfig | HSTUConfig, vector_dims: Mapping[str, int]) -> int:
    return sum(
        vector_dims[feature.column] * config.embedding_dim
        for feature in config.item_features
        if isinstance(feature, VectorFeature)
    )


def _blocks(
    config: NextItemConfig | MaskedItemConfig | HSTUConfig | SequenceToSequenceConfig,
) -> int:
    if isinstance(config, HSTUConfig):
        return config.num_blocks * 5 * config.embedding_dim**2
    if isinstance(config, SequenceToSequenceConfig):
        encoder = config.num_encoder_blocks * (_attention(config) + _feed_forward(config))
        return encoder + config.num_decoder_blocks * (
            2 * _attention(config) + _feed_forward(config)
        )
    return config.num_blocks * (_attention(config) + _feed_forward(config))


def _attention(config: TransformerConfig) -> int:
    return 4 * config.embedding_dim**2


def _feed_forward(config: TransformerConfig) -> int:
    maps = 3 if config.activation == "swiglu" else 2
    return maps * config.embedding_dim * config.feed_forward_dim


def _head(
    config: NextItemConfig | MaskedItemConfig | HSTUConfig | SequenceToSequenceConfig,
) -> int:
    head = getattr(config, "head", None)
    if isinstance(head, TargetAttention):
        return 3 * config.embedding_dim * head.num_heads * head.head_dim
    return 0
