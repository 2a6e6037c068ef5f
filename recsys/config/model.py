"""The models: the features that they read, their parts and sizes."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, ValidationInfo, field_validator

from recsys.config.section import MAX_COUNT, MAX_WIDTH, Section, with_kind


def _feature(feature: object) -> object:
    return {"column": feature} if isinstance(feature, str) else feature


class Feature(Section):
    """A column of the item table, of the log (`DataConfig.keep`) or of the user table, as features.

    A category is one of a small set of values, such as a brand; categories are several, such as the
    genres of a film: lists, or text with a separator. A number is standardised. Vectors, such as
    embeddings of texts, are lists of numbers per item, scaled to length 1.
    """

    kind: Literal["category", "categories", "number", "vector"] = "category"
    """How the models read the column."""
    column: str
    """Its name."""
    separator: str = Field("|", min_length=1, exclude_if=lambda separator: separator == "|")
    """Separator of categories in a column of text."""

    @field_validator("separator")
    @classmethod
    def _separates_categories(cls, separator: str, info: ValidationInfo) -> str:
        if info.data.get("kind", "categories") != "categories":
            raise ValueError("only kind: categories has a separator")
        return separator


Features = tuple[Annotated[Feature, BeforeValidator(_feature)], ...]


class FeatureReaderConfig(Section):
    """Features that a model reads in addition to item tokens; a name is a column of categories."""

    item_features: Features = ()
    """Features of items as input and as candidate, also of items without interactions."""
    item_ids: bool = True
    """Whether an item also has an embedding of its own, or only its features, as a new one."""
    interaction_features: Features = ()
    """Features of past interactions (an action, a rating, a quantity), embedded with their items:
    columns of the log that ``data.keep`` names. Those of a target are never used."""
    user_features: Features = ()
    """Features of users, embedded with every past item: columns of the user table."""

    @field_validator("item_features", "interaction_features", "user_features")
    @classmethod
    def _can_be_features(
        cls, features: tuple[Feature, ...], info: ValidationInfo
    ) -> tuple[Feature, ...]:
        of_items = info.field_name == "item_features"
        reserved = ("item_id", "count") if of_items else ("user_id", "item_id")
        columns = [(feature.kind, feature.column) for feature in features]
        for kind, column in columns:
            if kind == "vector" and not of_items:
                raise ValueError(f"{column}: only an item has vectors")
            if column in reserved:
                raise ValueError(f"{column} cannot be a feature")
            if columns.count((kind, column)) > 1:
                raise ValueError(f"{column} is listed twice as {kind}")
        return features

    @field_validator("item_ids")
    @classmethod
    def _is_represented(cls, item_ids: bool, info: ValidationInfo) -> bool:
        if not item_ids and not info.data.get("item_features"):
            raise ValueError("false needs item_features: nothing else would represent an item")
        return item_ids


_ForBoth = BeforeValidator(lambda life: (life, life) if isinstance(life, int | float) else life)
HalfLives = Annotated[tuple[PositiveFloat, PositiveFloat], _ForBoth]


class TargetAttention(Section):
    """Each candidate attends to the purchases of the history (`TargetAttentionHead`)."""

    kind: Literal["target_attention"] = "target_attention"
    num_heads: int = Field(2, ge=1, le=1_024)
    """Number of attention heads, whose contributions are summed."""
    head_dim: int = Field(32, ge=1, le=MAX_WIDTH)
    """Width of the queries, keys and values of each head."""
    pooling: Literal["average", "sum"] = "average"
    """With weights that sum to 1, which learns rules of several causes, or without normalisation,
    which costs less."""
    half_life: HalfLives = (2.0, 50.0)
    """The purchases after which attention halves, of the first and of the last head, geometrically
    spaced between. One number is that of all heads; a single head has the first."""

    @property
    def half_lives(self) -> list[float]:
        first, last = self.half_life
        steps = max(self.num_heads - 1, 1)
        return [first * (last / first) ** (step / steps) for step in range(self.num_heads)]


class KernelAttention(Section):
    """Target attention as one dot product in a wider space (`KernelAttentionHead`)."""

    kind: Literal["kernel_attention"]
    prototypes: int = Field(8, ge=1, le=MAX_WIDTH)
    """P, the number of prototypes."""
    value_dim: int = Field(4, ge=1, le=MAX_WIDTH)
    """d, the width of values: the dot product is P d wider."""
    candidate_dropout: bool = True
    """Whether candidates have dropout in training, as purchases have: better for a model alone; a
    mean with dot products gains nothing by it."""


class DotProduct(Section):
    """Dot product of hidden state and candidate embedding: SASRec's head, the ablation baseline."""

    kind: Literal["dot_product"] = "dot_product"


Head = Annotated[TargetAttention | KernelAttention | DotProduct, Field(discriminator="kind")]


class _ModelSection(Section):
    kind: str
    embedding_dim: int = Field(64, ge=1, le=MAX_WIDTH)
    """D, the width of item embeddings and hidden states."""
    max_sequence_length: int = Field(50, ge=1, le=MAX_WIDTH)
    """Number of items of a history that the model reads, the newest."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout probability of embeddings, attention and feed-forward networks."""

    @property
    def family(self) -> str:
        return self.kind


class _AttentionConfig(_ModelSection):
    num_heads: int = Field(2, ge=1, le=1_024)
    """Number of attention heads of each block; must divide embedding_dim."""

    @field_validator("num_heads")
    @classmethod
    def _divides(cls, num_heads: int, info: ValidationInfo) -> int:
        if (dim := info.data.get("embedding_dim", num_heads)) % num_heads:
            raise ValueError(f"must divide embedding_dim, {dim}")
        return num_heads


class TransformerConfig(_AttentionConfig):
    """Settings of every Transformer."""

    feed_forward_dim: int = Field(256, ge=1, le=MAX_WIDTH)
    """Width of the hidden layer of a feed-forward network."""
    activation: Literal["gelu", "relu", "swiglu"] = "gelu"
    """Activation of a feed-forward network; relu is the published one, swiglu adds a gate."""
    norm: Literal["pre", "post", "gated"] = "pre"
    """Place of the layer norm: before each sub-layer, after it (the 2017 Transformer), or before it
    with a gate that scales the output (with swiglu, the blocks of LiGR and eSASRec)."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """Vectors that are added to the item embeddings, or rotary: attention by distances, which is
    better for long histories."""

    @field_validator("positions")
    @classmethod
    def _has_even_width(cls, positions: str, info: ValidationInfo) -> str:
        width = info.data.get("embedding_dim", 2) // info.data.get("num_heads", 1)
        if positions == "rotary" and width % 2:
            raise ValueError(f"rotary rotates pairs of features, but heads have {width}")
        return positions


class NextItemConfig(FeatureReaderConfig, TransformerConfig):
    """An encoder and a head that predict the next item."""

    kind: Literal["next_item"] = "next_item"
    num_blocks: int = Field(2, ge=0, le=1_000)
    """Number of encoder blocks."""
    filter: bool = False
    """Whether a causal low-pass filter stands beside the attention of every block."""
    head: Head = TargetAttention()
    """The head that scores candidates."""

    @property
    def family(self) -> str:
        return self.head.kind


class MaskedItemConfig(TransformerConfig):
    """A bidirectional encoder that predicts masked items: BERT4Rec."""

    kind: Literal["masked_item"]
    num_blocks: int = Field(2, ge=0, le=1_000)
    """Number of encoder blocks."""
    mask_probability: float = Field(0.2, gt=0, le=1)
    """Share of the items that training masks, redrawn in every epoch; at least one."""


class HSTUConfig(FeatureReaderConfig, _AttentionConfig):
    """HSTU blocks (`HSTUBlock`) and a head that predict the next item."""

    kind: Literal["hstu"]
    num_blocks: int = Field(2, ge=0, le=1_000)
    """Number of encoder blocks."""
    times: Literal["none", "past", "request"] = "none"
    """The time from each item to the newest one, or to the request (in training the next
    interaction), which needs ``evaluation.request_time: known``."""
    head: Head = DotProduct()
    """The head that scores candidates."""


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
    """Maximum number of generated purchases, and of those that training predicts."""


class FactorisationMachineConfig(_ModelSection):
    """Inner products of the candidate with the last item and with all items; no Transformer."""

    kind: Literal["factorisation_machine"]


_NEXT_ITEM = BeforeValidator(lambda model: with_kind(model, "next_item"))
SingleModelConfig = NextItemConfig | MaskedItemConfig | HSTUConfig | FactorisationMachineConfig
"""A model that can be a member of a mean."""


class AveragedMember(Section):
    """A model of a mean, and what differs in its training from the section training."""

    model: Annotated[SingleModelConfig, Field(discriminator="kind"), _NEXT_ITEM]
    """The model; it reads no features of interactions or users."""
    max_epochs: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Maximum number of epochs; that of the section training if None."""
    validate_every: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Number of epochs between validations; that of training if None."""
    exclude_seen: bool | None = None
    """Whether items seen before a target are left out of its loss; that of training if None."""


def why_no_mean(models: Sequence[SingleModelConfig]) -> str | None:
    """Return why models cannot be a mean, or the teachers of the first one; None if they can."""
    if len({model.max_sequence_length for model in models}) > 1:
        return "all must have the same max_sequence_length"
    inputs = ("interaction_features", "user_features")
    if any(getattr(model, name, ()) for model in models for name in inputs):
        return "models that read features of interactions or users have no mean"
    features = [getattr(model, "item_features", ()) for model in models]
    if any(own != features[0] for own in features):
        return "all must have the same item_features"
    return None


class AveragedConfig(Section):
    """The mean of the scores of several models, which are trained one by one (`AveragedModel`)."""

    kind: Literal["averaged"]
    members: tuple[AveragedMember, ...] = Field(min_length=2, max_length=8)
    """The models; all read the same number of items of a history, and features of items."""

    @field_validator("members")
    @classmethod
    def _read_the_same(cls, members: tuple[AveragedMember, ...]) -> tuple[AveragedMember, ...]:
        if reason := why_no_mean([member.model for member in members]):
            raise ValueError(reason)
        return members

    @property
    def item_features(self) -> tuple[Feature, ...]:
        """Those of each member."""
        return getattr(self.members[0].model, "item_features", ())

    @property
    def family(self) -> str:
        return self.kind

    @property
    def embedding_dim(self) -> int:
        """The width of the item embeddings of all members together."""
        return sum(member.model.embedding_dim for member in self.members)

    @property
    def max_sequence_length(self) -> int:
        """Number of items of a history that each member reads, the newest."""
        return self.members[0].model.max_sequence_length


ModelConfig = Annotated[
    SingleModelConfig | SequenceToSequenceConfig | AveragedConfig,
    Field(discriminator="kind"),
    _NEXT_ITEM,
]


def reads_request_times(model: ModelConfig) -> bool:
    """Return whether a model, or a member of a mean, reads the time of the request."""
    if isinstance(model, AveragedConfig):
        return any(reads_request_times(member.model) for member in model.members)
    return isinstance(model, HSTUConfig) and model.times == "request"
