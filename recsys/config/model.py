"""The models: what their parts are, and how large."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    PositiveFloat,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from recsys.config.features import InteractionFeatures, ItemFeatures, UserFeatures
from recsys.config.section import Section


class TargetAttention(Section):
    """Each candidate attends over the purchases (`TargetAttentionHead`)."""

    kind: Literal["target_attention"] = "target_attention"
    num_heads: int = Field(2, ge=1)
    """Attention heads; their contributions add up."""
    head_dim: int = Field(32, ge=1)
    """Width of queries, keys and values in each head."""
    kv_source: Literal["items", "states", "both"] = "items"
    """What keys and values are made of: item embeddings, encoder states or both."""
    pooling: Literal["average", "sum"] = "average"
    """Whether what the purchases say of a candidate is averaged, with weights that sum to 1, or
    summed up. An average learns rules of several causes; a sum knows how much speaks for the
    candidate, and costs less."""
    half_life: tuple[PositiveFloat, PositiveFloat] = (2.0, 50.0)
    """Recency decay: purchases after which attention halves, from the first head to the last,
    geometrically between; a single head has the first."""


class DotProduct(Section):
    """Hidden state times candidate embedding: SASRec's head, the ablation of target attention."""

    kind: Literal["dot_product"] = "dot_product"


class Cosine(Section):
    """The dot product of directions (`CosineHead`)."""

    kind: Literal["cosine"] = "cosine"
    temperature: float = Field(0.05, gt=0)


class MixtureOfLogits(Section):
    """Several cosines, weighed by history and candidate (`MixtureOfLogitsHead`)."""

    kind: Literal["mixture_of_logits"] = "mixture_of_logits"
    components: int = Field(2, ge=1)
    """In how many ways each side is seen; the cost grows with its square."""
    component_dim: int = Field(32, ge=1)
    temperature: float = Field(0.05, gt=0)


Head = Annotated[
    TargetAttention | DotProduct | Cosine | MixtureOfLogits, Field(discriminator="kind")
]


class TransformerConfig(Section):
    """What every Transformer has."""

    embedding_dim: int = Field(64, ge=1)
    wide_heads: bool = False
    """Give every attention head the full embedding_dim, instead of its share."""
    num_heads: int = Field(2, ge=1)
    """Attention heads of each block; must divide embedding_dim unless they are wide."""
    feed_forward_dim: int = Field(256, ge=1)
    activation: Literal["gelu", "relu", "swiglu"] = "gelu"
    """Between the two maps of a feed-forward network; relu is the published one. swiglu: a third
    map, as wide as the first, is a gate."""
    max_sequence_length: int = Field(50, ge=1)
    """The newest so many items of a history are read."""
    dropout: float = Field(0.2, ge=0, lt=1)
    embedding_dropout: None = None
    """There was another dropout for what the first block reads, which did not help. That there is
    none is still said, as of `TrainingConfig.ema_decay`."""
    norm: Literal["pre", "post", "gated"] = "pre"
    """Layer norm before each sub-layer, or after it as in 2017. gated: before it, and a gate says
    how much of it is added; with swiglu, these are the blocks of LiGR and eSASRec."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """Vectors added to items (an encoder counts from the end of the sequence); or rotary: attention
    sees how far apart items are, which is better where histories are long."""

    @field_validator("num_heads")
    @classmethod
    def _divides(cls, num_heads: int, info: ValidationInfo) -> int:
        dim = info.data.get("embedding_dim", num_heads)
        if dim % num_heads and not info.data.get("wide_heads"):
            raise ValueError(f"must divide embedding_dim, {dim}, unless wide_heads is true")
        return num_heads

    @field_validator("positions")
    @classmethod
    def _turns_pairs(cls, positions: str, info: ValidationInfo) -> str:
        dim, heads = info.data.get("embedding_dim", 2), info.data.get("num_heads", 1)
        width = dim if info.data.get("wide_heads") else dim // heads
        if positions == "rotary" and width % 2:
            raise ValueError(f"rotary turns pairs of features, and heads have {width}")
        return positions


class FeatureReaderConfig(Section):
    """What a model reads beside item tokens, if it can."""

    item_features: ItemFeatures = ()
    """What is embedded of an item beside its token, as input and as candidate: an item that nobody
    has had yet then has an embedding too. A mere name is a column of categories."""
    interaction_features: InteractionFeatures = ()
    """What is embedded beside each past item of the interaction that it was had in (an action, a
    rating, a quantity): columns of the log that ``data.keep`` names. Those of the item to be
    foretold are never read, so that what is known only after a purchase will do."""
    user_features: UserFeatures = ()
    """What is embedded of the user beside each past item: columns of the user table."""

    @model_serializer(mode="wrap")
    def _without_what_is_off(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Models of before there were features of interactions and users keep their fingerprint."""
        tree: dict[str, Any] = handler(self)
        new = ("interaction_features", "user_features")
        return {key: value for key, value in tree.items() if value or key not in new}


class NextItemConfig(FeatureReaderConfig, TransformerConfig):
    """An encoder and a head: which item comes next."""

    kind: Literal["next_item"] = "next_item"
    num_blocks: int = Field(2, ge=0)
    head: Head = TargetAttention()

    @property
    def family(self) -> str:
        """What runs are told apart by."""
        return self.head.kind


class MaskedItemConfig(TransformerConfig):
    """An encoder that looks both ways and says which items are hidden: BERT4Rec."""

    kind: Literal["masked_item"]
    num_blocks: int = Field(2, ge=0)
    mask_probability: float = Field(0.2, gt=0, le=1)
    """Share of the items that training hides, others in every epoch; at least one of a sequence."""

    @property
    def family(self) -> str:
        """What runs are told apart by."""
        return self.kind


class HSTUConfig(FeatureReaderConfig):
    """HSTU blocks and a head: which item comes next (`HSTUBlock`)."""

    kind: Literal["hstu"]
    embedding_dim: int = Field(64, ge=1)
    num_blocks: int = Field(2, ge=0)
    num_heads: int = Field(2, ge=1)
    """Attention heads of each block; must divide embedding_dim."""
    max_sequence_length: int = Field(50, ge=1)
    """The newest so many items of a history are read."""
    dropout: float = Field(0.2, ge=0, lt=1)
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """Vectors added to items, beside the blocks' own bias for distances."""
    times: Literal["none", "past", "request"] = "none"
    """What is read of times. past: how long before the newest item each item was had. request: how
    long before the time at which the recommendation is asked for: in training, when the next item
    was had; the protocol is to say so (``evaluation.request_time: known``)."""
    head: Head = DotProduct()

    @property
    def family(self) -> str:
        """What runs are told apart by."""
        return self.kind

    @field_validator("num_heads")
    @classmethod
    def _divides(cls, num_heads: int, info: ValidationInfo) -> int:
        dim = info.data.get("embedding_dim", num_heads)
        if dim % num_heads:
            raise ValueError(f"must divide embedding_dim, {dim}")
        return num_heads


class SequenceToSequenceConfig(TransformerConfig):
    """An encoder of the history and a decoder that writes the purchases after it, one by one."""

    kind: Literal["sequence_to_sequence"]
    positions: Literal["learned", "sinusoidal"] = "learned"
    num_encoder_blocks: int = Field(2, ge=0)
    num_decoder_blocks: int = Field(2, ge=1)
    max_generated: int = Field(20, ge=1)
    """The most purchases that can be generated; training foretells as many, from random points of
    each history."""

    @property
    def family(self) -> str:
        """What runs are told apart by."""
        return self.kind


class FactorisationMachineConfig(Section):
    """No Transformer: inner products of the candidate with the last item and with all of them."""

    kind: Literal["factorisation_machine"]
    embedding_dim: int = Field(64, ge=1)
    max_sequence_length: int = Field(50, ge=1)
    """The newest so many items of a history are read."""
    dropout: float = Field(0.2, ge=0, lt=1)

    @property
    def family(self) -> str:
        """What runs are told apart by."""
        return self.kind


def _model_kind(model: object) -> str:
    """next_item where no kind is named."""
    kind = model.get("kind") if isinstance(model, dict) else getattr(model, "kind", None)
    return "next_item" if kind is None else str(kind)


ModelConfig = Annotated[
    Annotated[NextItemConfig, Tag("next_item")]
    | Annotated[MaskedItemConfig, Tag("masked_item")]
    | Annotated[HSTUConfig, Tag("hstu")]
    | Annotated[SequenceToSequenceConfig, Tag("sequence_to_sequence")]
    | Annotated[FactorisationMachineConfig, Tag("factorisation_machine")],
    Discriminator(_model_kind),
]
