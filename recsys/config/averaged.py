"""Any model: a single one, or the mean of several."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from recsys.config.model import (
    FactorisationMachineConfig,
    FeatureReaderConfig,
    HSTUConfig,
    MaskedItemConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
)
from recsys.config.section import MAX_COUNT, Section


def _model_kind(model: object) -> str:
    """Return the kind of a model, by default next_item."""
    kind = model.get("kind") if isinstance(model, dict) else getattr(model, "kind", None)
    return "next_item" if kind is None else str(kind)


MemberModelConfig = Annotated[
    Annotated[NextItemConfig, Tag("next_item")]
    | Annotated[MaskedItemConfig, Tag("masked_item")]
    | Annotated[HSTUConfig, Tag("hstu")]
    | Annotated[FactorisationMachineConfig, Tag("factorisation_machine")],
    Discriminator(_model_kind),
]
"""A model that can be a member of a mean."""


class AveragedMember(Section):
    """A model of a mean, and what differs in its training from the section training."""

    model: MemberModelConfig
    """The model; it reads no features."""
    max_epochs: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Maximum number of epochs; that of the section training if None."""
    decay_fraction: float | None = Field(None, ge=0, le=1)
    """Share of the epochs over which the learning rate decays; that of training if None."""
    validate_every: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Number of epochs between validations; that of training if None."""
    exclude_seen: bool | None = None
    """Whether items seen before a target are left out of its loss; that of training if None."""


class AveragedConfig(Section):
    """The mean of the scores of several models, which are trained one by one (`AveragedModel`)."""

    kind: Literal["averaged"]
    members: tuple[AveragedMember, ...] = Field(min_length=2, max_length=8)
    """The models; all read the same number of items of a history."""

    @field_validator("members")
    @classmethod
    def _read_the_same(cls, members: tuple[AveragedMember, ...]) -> tuple[AveragedMember, ...]:
        if len({member.model.max_sequence_length for member in members}) > 1:
            raise ValueError("all must have the same max_sequence_length")
        for model in (member.model for member in members):
            if isinstance(model, FeatureReaderConfig) and (
                model.item_features or model.interaction_features or model.user_features
            ):
                raise ValueError("models that read features cannot be averaged")
        return members

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
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
    Annotated[NextItemConfig, Tag("next_item")]
    | Annotated[MaskedItemConfig, Tag("masked_item")]
    | Annotated[HSTUConfig, Tag("hstu")]
    | Annotated[SequenceToSequenceConfig, Tag("sequence_to_sequence")]
    | Annotated[FactorisationMachineConfig, Tag("factorisation_machine")]
    | Annotated[AveragedConfig, Tag("averaged")],
    Discriminator(_model_kind),
]


def reads_request_times(model: ModelConfig) -> bool:
    """Return whether a model, or a member of a mean, reads the time of the request."""
    if isinstance(model, AveragedConfig):
        return any(reads_request_times(member.model) for member in model.members)
    return isinstance(model, HSTUConfig) and model.times == "request"
