"""The models: what their parts are, and how large."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, PositiveFloat, Tag, ValidationInfo, field_validator

from recsys.config.section import Section


class TargetAttention(Section):
    """Each candidate attends over the purchases (`TargetAttentionHead`)."""

    kind: Literal["target_attention"] = "target_attention"
    num_heads: int = Field(2, ge=1)
    """Attention heads; their contributions add up."""
    head_dim: int = Field(32, ge=1)
    """Width of queries, keys and values in each head."""
    memory: Literal["items", "states"] = "items"
    """What keys and values are made of: item embeddings or encoder states."""
    half_life: tuple[PositiveFloat, PositiveFloat] = (2.0, 50.0)
    """Recency decay: purchases after which attention halves, from the first head to the last,
    geometrically between; a single head has the first."""


class DotProduct(Section):
    """Hidden state times candidate embedding: SASRec's head, the ablation of target attention."""

    kind: Literal["dot_product"] = "dot_product"


class TransformerConfig(Section):
    """What every Transformer has."""

    embedding_dim: int = Field(64, ge=1)
    wide_heads: bool = False
    """Give every attention head the full embedding_dim, instead of its share."""
    num_heads: int = Field(2, ge=1)
    """Attention heads of each block; must divide embedding_dim unless they are wide."""
    feed_forward_dim: int = Field(256, ge=1)
    activation: Literal["gelu", "relu"] = "gelu"
    """Between the two maps of a feed-forward network; relu is the published one."""
    max_sequence_length: int = Field(50, ge=1)
    """The newest so many items of a history are read."""
    dropout: float = Field(0.2, ge=0, lt=1)
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sub-layer, or after it as in 2017."""
    positions: Literal["learned", "sinusoidal"] = "learned"

    @field_validator("num_heads")
    @classmethod
    def _divides(cls, num_heads: int, info: ValidationInfo) -> int:
        dim = info.data.get("embedding_dim", num_heads)
        if dim % num_heads and not info.data.get("wide_heads"):
            raise ValueError(f"must divide embedding_dim, {dim}, unless wide_heads is true")
        return num_heads


class NextItemConfig(TransformerConfig):
    """An encoder and a head: which item comes next."""

    kind: Literal["next_item"] = "next_item"
    num_blocks: int = Field(2, ge=0)
    head: Annotated[TargetAttention | DotProduct, Field(discriminator="kind")] = TargetAttention()

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


class SequenceToSequenceConfig(TransformerConfig):
    """An encoder of the history and a decoder that writes the purchases after it, one by one."""

    kind: Literal["sequence_to_sequence"]
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
    | Annotated[SequenceToSequenceConfig, Tag("sequence_to_sequence")]
    | Annotated[FactorisationMachineConfig, Tag("factorisation_machine")],
    Discriminator(_model_kind),
]
