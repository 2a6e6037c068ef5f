"""How a model is trained: its loss, its schedule, and the model that it may start from."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_serializer, field_validator

from recsys.config.section import MAX_COUNT, Section, with_kind


class CrossEntropy(Section):
    """Cross-entropy of the target over the full catalogue."""

    kind: Literal["cross_entropy"] = "cross_entropy"


class _Sampled(Section):
    num_negatives: int = Field(1024, ge=1, le=MAX_COUNT)
    """Number of items drawn for each step, which all of its targets share. If it reaches the size
    of the catalogue and negatives are uniform, every item is drawn once."""
    negatives: Literal["uniform", "popularity", "in_batch"] = "uniform"
    """How negatives are drawn. uniform: all items equally likely; popularity: in proportion to
    their purchases in training; in_batch: from the targets of the step."""


class SampledSoftmax(_Sampled):
    """Cross-entropy over the target and sampled negatives, corrected for the sampling."""

    kind: Literal["sampled_softmax"]


class BinaryCrossEntropy(_Sampled):
    """Binary cross-entropy of the target and each negative: SASRec's loss."""

    kind: Literal["bce"]


class GeneralisedBinaryCrossEntropy(_Sampled):
    """Binary cross-entropy that corrects overconfidence from few negatives: gSASRec's loss."""

    kind: Literal["gbce"]
    calibration: float = Field(0.75, ge=0, le=1)
    """The t of gSASRec: 0 is plain binary cross-entropy, 1 removes all overconfidence."""


SampledLossConfig = SampledSoftmax | BinaryCrossEntropy | GeneralisedBinaryCrossEntropy

LossConfig = Annotated[
    CrossEntropy | SampledLossConfig, Field(discriminator="kind"), BeforeValidator(with_kind)
]


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


class StartConfig(Section):
    """A warm start: the training begins with the weights of a trained model, not with random ones.

    Items are matched by their ids; new ones are given rows of their own. The training is shorter
    and gentler than one from random weights: its learning rate falls in a line to a hundredth.
    """

    bundle: str
    """Folder of the trained model; ``--from`` sets it."""
    digest: str | None = None
    """SHA-256 of the manifest of that folder. The run records it; where it is given, another model
    in the folder is refused."""
    epochs: float = Field(0.25, gt=0, le=1)
    """Epochs as a share of training.max_epochs, at least one; likewise training.patience."""
    learning_rate: float = Field(0.3, gt=0, le=10)
    """Peak learning rate as a share of training.learning_rate."""
    replay: float = Field(0.5, ge=0, lt=1)
    """Share of the histories of an epoch that have no new interaction; a new interaction is later
    than all that the model was trained on. Each epoch reads all histories with new interactions,
    and as many others, drawn anew, as make this share. 0: only histories with new ones."""

    def applied_to(self, training: TrainingConfig) -> TrainingConfig:
        """Return the training section of a training that starts warm."""
        return training.model_copy(
            update={
                "max_epochs": math.ceil(training.max_epochs * self.epochs),
                "patience": math.ceil(training.patience * self.epochs),
                "learning_rate": training.learning_rate * self.learning_rate,
                "decay_fraction": 1.0,
                "average_weights": False,
            }
        )
