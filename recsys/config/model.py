"""The models: their parts and sizes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)

from recsys.config.features import InteractionFeatures, ItemFeatures, UserFeatures
from recsys.config.section import MAX_WIDTH, Section


def _as_pair(value: object) -> object:
    """Expand a number to two equal ones."""
    return (value, value) if isinstance(value, int | float) else value


HalfLives = Annotated[tuple[PositiveFloat, PositiveFloat], BeforeValidator(_as_pair)]


class TargetAttention(Section):
    """Each candidate attends to the purchases of the history (`TargetAttentionHead`)."""

    kind: Literal["target_attention"] = "target_attention"
    num_heads: int = Field(2, ge=1, le=1_024)
    """Number of attention heads, whose contributions are summed."""
    head_dim: int = Field(32, ge=1, le=MAX_WIDTH)
    """Width of the queries, keys and values of each head."""
    kv_source: Literal["items", "states", "both"] = "items"
    """Source of the keys and values: item embeddings, encoder states or both."""
    pooling: Literal["average", "sum"] = "average"
    """How the contributions of the purchases are pooled. average: with attention weights that sum
    to 1, which learns rules of several causes; sum: without normalisation, which measures the total
    support for the candidate and costs less."""
    half_life: HalfLives = (2.0, 50.0)
    """Recency decay: the number of purchases after which attention halves, of the first and of the
    last head, geometrically spaced between. One number is that of all heads. A single head takes
    one number, by default 2."""

    @model_validator(mode="before")
    @classmethod
    def _single_head_default(cls, section: object) -> object:
        if isinstance(section, dict) and section.get("num_heads") == 1:
            return {"half_life": 2.0, **section}
        return section

    @field_validator("half_life")
    @classmethod
    def _single_head_has_one(
        cls, half_life: tuple[float, float], info: ValidationInfo
    ) -> tuple[float, float]:
        if info.data.get("num_heads") == 1 and half_life[0] != half_life[1]:
            raise ValueError("must be one number where num_heads is 1")
        return half_life

    @property
    def half_lives(self) -> list[float]:
        """The half-life of each head."""
        first, last = self.half_life
        steps = max(self.num_heads - 1, 1)
        return [first * (last / first) ** (step / steps) for step in range(self.num_heads)]


class DotProduct(Section):
    """Dot product of hidden state and candidate embedding: SASRec's head, the ablation baseline."""

    kind: Literal["dot_product"] = "dot_product"


Head = Annotated[TargetAttention | DotProduct, Field(discriminator="kind")]


class TransformerConfig(Section):
    """Settings of every Transformer."""

    embedding_dim: int = Field(64, ge=1, le=MAX_WIDTH)
    """D, the width of item embeddings and hidden states."""
    wide_heads: bool = False
    """Whether every attention head has the full embedding_dim instead of its share."""
    num_heads: int = Field(2, ge=1, le=1_024)
    """Number of attention heads of each block; must divide embedding_dim unless heads are wide."""
    feed_forward_dim: int = Field(256, ge=1, le=MAX_WIDTH)
    """Width of the hidden layer of a feed-forward network."""
    activation: Literal["gelu", "relu", "swiglu"] = "gelu"
    """Activation of a feed-forward network; relu is the published one. swiglu adds a third linear
    map of the same width as a gate."""
    max_sequence_length: int = Field(50, ge=1, le=MAX_WIDTH)
    """Number of items of a history that the model reads, the newest."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout probability of embeddings, attention and feed-forward networks."""
    norm: Literal["pre", "post", "gated"] = "pre"
    """Place of the layer norm. pre: before each sub-layer; post: after it, as in the 2017
    Transformer; gated: before it, and a gate scales the output of the sub-layer (with swiglu, the
    blocks of LiGR and eSASRec)."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """Position encoding. learned and sinusoidal vectors are added to the item embeddings (an
    encoder counts from the end of the sequence); rotary makes attention depend on distances, which
    is better for long histories."""

    @field_validator("num_heads")
    @classmethod
    def _divides(cls, num_heads: int, info: ValidationInfo) -> int:
        dim = info.data.get("embedding_dim", num_heads)
        if dim % num_heads and not info.data.get("wide_heads"):
            raise ValueError(f"must divide embedding_dim, {dim}, unless wide_heads is true")
        return num_heads

    @field_validator("positions")
    @classmethod
    def _has_even_width(cls, positions: str, info: ValidationInfo) -> str:
        dim, heads = info.data.get("embedding_dim", 2), info.data.get("num_heads", 1)
        width = dim if info.data.get("wide_heads") else dim // heads
        if positions == "rotary" and width % 2:
            raise ValueError(f"rotary rotates pairs of features, but heads have {width}")
        return positions


class FeatureReaderConfig(Section):
    """Features that a model reads in addition to item tokens."""

    item_features: ItemFeatures = ()
    """Item features that are embedded with the item token, as input and as candidate, so that an
    item without interactions has an embedding too. A plain name is a column of categories."""
    item_ids: bool = True
    """Whether each item that training meets also has an embedding of its own. If not, an item is
    represented by its features only, and a new item in the same way as an old one."""
    interaction_features: InteractionFeatures = ()
    """Features of past interactions (an action, a rating, a quantity) that are embedded with their
    items: columns of the log that ``data.keep`` names. The target's interaction features are never
    used, so columns that are only known after a purchase are allowed."""
    user_features: UserFeatures = ()
    """User features that are embedded with every past item: columns of the user table."""

    @field_validator("item_ids")
    @classmethod
    def _is_represented(cls, item_ids: bool, info: ValidationInfo) -> bool:
        if not item_ids and not info.data.get("item_features"):
            raise ValueError("false needs item_features: nothing else would represent an item")
        return item_ids


class NextItemConfig(FeatureReaderConfig, TransformerConfig):
    """An encoder and a head that predict the next item."""

    kind: Literal["next_item"] = "next_item"
    num_blocks: int = Field(2, ge=0, le=1_000)
    """Number of encoder blocks."""
    filter: bool = False
    """Whether a causal low-pass filter stands beside the attention of every block (`CausalFilter`).
    It was worth its 3% of time on Beauty and Sports, with norm post."""
    head: Head = TargetAttention()
    """The head that scores candidates."""

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
        return self.head.kind


class MaskedItemConfig(TransformerConfig):
    """A bidirectional encoder that predicts masked items: BERT4Rec."""

    kind: Literal["masked_item"]
    num_blocks: int = Field(2, ge=0, le=1_000)
    """Number of encoder blocks."""
    mask_probability: float = Field(0.2, gt=0, le=1)
    """Share of the items that training masks, redrawn in every epoch; at least one per sequence."""

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
        return self.kind


class HSTUConfig(FeatureReaderConfig):
    """HSTU blocks (`HSTUBlock`) and a head that predict the next item."""

    kind: Literal["hstu"]
    embedding_dim: int = Field(64, ge=1, le=MAX_WIDTH)
    """D, the width of item embeddings and hidden states."""
    num_blocks: int = Field(2, ge=0, le=1_000)
    """Number of encoder blocks."""
    num_heads: int = Field(2, ge=1, le=1_024)
    """Number of attention heads of each block; must divide embedding_dim."""
    max_sequence_length: int = Field(50, ge=1, le=MAX_WIDTH)
    """Number of items of a history that the model reads, the newest."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout probability of embeddings and blocks."""
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """Position vectors added to the item embeddings; the blocks also have a bias for distances."""
    times: Literal["none", "past", "request"] = "none"
    """Time features of past items. past: the time from each item to the newest one. request: the
    time from each item to the request, which in training is the time of the next interaction;
    requires ``evaluation.request_time: known``."""
    head: Head = DotProduct()
    """The head that scores candidates."""

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
        return self.kind

    @field_validator("num_heads")
    @classmethod
    def _divides(cls, num_heads: int, info: ValidationInfo) -> int:
        dim = info.data.get("embedding_dim", num_heads)
        if dim % num_heads:
            raise ValueError(f"must divide embedding_dim, {dim}")
        return num_heads


class SequenceToSequenceConfig(TransformerConfig):
    """An encoder of the history and a decoder that generates the next purchases one by one."""

    kind: Literal["sequence_to_sequence"]
    positions: Literal["learned", "sinusoidal"] = "learned"
    """Position vectors added to the item embeddings."""
    num_encoder_blocks: int = Field(2, ge=0, le=1_000)
    """Number of encoder blocks."""
    num_decoder_blocks: int = Field(2, ge=1, le=1_000)
    """Number of decoder blocks."""
    max_generated: int = Field(20, ge=1, le=10_000)
    """Maximum number of generated purchases; training predicts as many from random cuts of each
    history."""

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
        return self.kind


class FactorisationMachineConfig(Section):
    """Inner products of the candidate with the last item and with all items; no Transformer."""

    kind: Literal["factorisation_machine"]
    embedding_dim: int = Field(64, ge=1, le=MAX_WIDTH)
    """D, the width of item embeddings."""
    max_sequence_length: int = Field(50, ge=1, le=MAX_WIDTH)
    """Number of items of a history that the model reads, the newest."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout probability of embeddings."""

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
        return self.kind
