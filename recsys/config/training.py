"""How a model is trained."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_serializer, field_validator

from recsys.config.loss import CrossEntropy, LossConfig
from recsys.config.section import MAX_COUNT, Section


class TrainingConfig(Section):
    """How the model is trained."""

    max_epochs: int = Field(40, ge=1, le=MAX_COUNT)
    """Maximum number of epochs: passes over the training part, unless epochs_per_pass divides
    them. By default more on a small log, as many as have 2,000 steps; then validate_every and
    patience grow with them, unless one of them is set."""
    epochs_per_pass: int = Field(1, ge=1, le=MAX_COUNT)
    """Number of epochs that a pass over the training part is divided into. Above 1, an epoch reads
    a random share of the histories, another one each time: a large log is validated more often. A
    sequence_to_sequence model always reads all of them."""
    validate_every: int = Field(1, ge=1, le=MAX_COUNT)
    """Number of epochs between validations; the last epoch is always validated."""
    patience: int = Field(10, ge=1, le=MAX_COUNT)
    """Number of epochs without a better validation NDCG@10 before the learning rate starts to decay
    (with schedule hold_decay), and, during the decay, before training stops."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    schedule: Literal["hold_decay", "inverse_square_root"] = "hold_decay"
    """The learning rate after the warm-up. hold_decay: constant, then a linear decay to a
    hundredth; inverse_square_root: proportional to the inverse square root of the step, as in the
    2017 Transformer."""
    warmup_steps: int = Field(100, ge=0, le=10**9)
    """Number of steps over which the learning rate rises linearly; at most a tenth of all steps."""
    decay_fraction: float = Field(0.3, ge=0, le=1)
    """Share of the epochs, at the end, over which the learning rate decays (hold_decay only)."""
    average_weights: bool = False
    """Whether validation ranks with, and the model gets, a running average of the weights after
    each epoch, the last ones counting most. At a constant learning rate it does for nothing what a
    decay does in further epochs; it is refused with a rate that falls (a decay_fraction above 0, or
    another schedule)."""
    loss: LossConfig = CrossEntropy()
    """cross_entropy compares each target with the full catalogue; the other losses compare it with
    sampled negatives, so that the cost of a step does not depend on the catalogue's size."""
    batch_tokens: int = Field(12_800, ge=1, le=10**9)
    """Number of tokens in a batch, including padding, over all processes."""
    windows: Literal["newest", "all"] = "newest"
    """Training windows of a history longer than model.max_sequence_length. newest: its newest
    items; all: consecutive windows over the entire history, so that every item but the first is a
    target once. A sequence_to_sequence model always trains on random cuts of the entire history."""
    exclude_seen: bool | None = None
    """Whether the items seen before a target, inside the window, are left out of its loss, instead
    of being wrong answers like any other. By default where evaluation.seen is filter."""
    checkpoint_minutes: float = Field(5.0, ge=0, le=10**6)
    """Number of minutes between checkpoints; another one is saved at the end of each epoch."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Precision of matrix products. auto: on a GPU bf16 if it has it; on a CPU whichever is faster,
    measured when a training begins and kept for its refit and where it resumes."""
    refit: bool = False
    """Whether to train again from scratch on all but the test targets, for the number of epochs
    that validation found best; the learning rate decays at the end of those, if it does."""

    @field_validator("average_weights")
    @classmethod
    def _has_a_constant_rate(cls, average_weights: bool, info: ValidationInfo) -> bool:
        given = info.data
        falls = given.get("decay_fraction") or given.get("schedule") == "inverse_square_root"
        if average_weights and falls:
            raise ValueError(
                "must be false where the learning rate falls: set decay_fraction to 0, with "
                "schedule hold_decay"
            )
        return average_weights

    @field_serializer("loss")
    def _in_short(self, loss: LossConfig) -> str | dict[str, Any]:
        """Abbreviate the default loss to its kind."""
        return loss.kind if loss.kind == "cross_entropy" else loss.model_dump(mode="json")
