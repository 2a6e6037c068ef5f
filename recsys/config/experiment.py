"""One experiment: how its model is trained, evaluated and tracked, beside its data and model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, field_serializer, model_validator

from recsys.config.data import DataConfig
from recsys.config.model import (
    AveragedConfig,
    AveragedMember,
    DotProduct,
    HSTUConfig,
    KernelAttention,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    reads_request_times,
    why_no_mean,
)
from recsys.config.section import MAX_COUNT, MAX_SEED, Section, with_kind
from recsys.errors import InputError


class CrossEntropy(Section):
    """Cross-entropy of the target over the full catalogue."""

    kind: Literal["cross_entropy"] = "cross_entropy"


class _Sampled(Section):
    num_negatives: int = Field(1024, ge=1, le=MAX_COUNT)
    """Number of items drawn for each step, for all of its targets; at most, each item once. All are
    equally likely."""


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
    """Maximum number of epochs. By default more on a small log, as many as have 2,000 steps; then
    validate_every and patience grow with them, unless one of them is set."""
    epochs_per_pass: int = Field(1, ge=1, le=MAX_COUNT)
    """Epochs in a pass over the histories, each of a random share (sequence_to_sequence: all)."""
    validate_every: int = Field(1, ge=1, le=MAX_COUNT)
    """Number of epochs between validations; the last epoch is always validated."""
    patience: int = Field(10, ge=1, le=MAX_COUNT)
    """Number of epochs without a better validation NDCG@10 before the learning rate decays,
    and then before training stops."""
    learning_rate: float = Field(1e-3, gt=0)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    warmup_steps: int = Field(100, ge=0, le=10**9)
    """Steps over which the learning rate rises linearly; a tenth of all at most, if it decays."""
    decay_fraction: float = Field(0.3, ge=0, le=1)
    """Share of the epochs, at the end, over which the learning rate decays linearly to a hundredth;
    before, it is constant."""
    average_weights: bool = False
    """Whether the model is a running average of the weights after each epoch; in the place of a
    decay: it needs a decay_fraction of 0."""
    loss: LossConfig = CrossEntropy()
    """cross_entropy compares each target with the full catalogue, the others with negatives."""
    batch_tokens: int = Field(12_800, ge=1, le=10**9)
    """Number of tokens in a batch, including padding, over all processes."""
    windows: Literal["newest", "all"] = "newest"
    """Of a history longer than model.max_sequence_length: its newest items, or consecutive windows
    over all of it (sequence_to_sequence: random cuts)."""
    exclude_seen: bool | None = None
    """Whether the items seen before a target, inside the window, are left out of its loss. By
    default where evaluation.seen is filter."""
    soft_labels: float = Field(0.0, ge=0, lt=1)
    """Share of each label for items that followed the newest items of the history elsewhere; the
    rest is the target's. On sparse logs .5, with less dropout, learns faster."""
    checkpoint_minutes: float = Field(5.0, ge=0, le=10**6)
    """Number of minutes between checkpoints; another one is saved at the end of each epoch."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Precision of matrix products. auto: on a GPU bf16 if it has it, on a CPU what is faster."""
    refit: bool = False
    """Whether to train again from scratch on all but the test targets, for the number of epochs
    that validation found best."""
    teachers: tuple[AveragedMember, ...] = Field((), max_length=8, exclude_if=lambda some: not some)
    """Models that are trained before. The model then learns the mean of their scores beside the
    targets (distillation), best with less dropout. A warm start has none."""

    @model_validator(mode="after")
    def _has_a_constant_rate(self) -> Self:
        if self.average_weights and self.decay_fraction:
            raise ValueError("average_weights needs decay_fraction 0")
        return self

    @field_serializer("loss")
    def _in_short(self, loss: LossConfig) -> str | dict[str, Any]:
        return loss.kind if loss.kind == "cross_entropy" else loss.model_dump(mode="json")


class StartConfig(Section):
    """A warm start: the training begins with the weights of a trained model, not with random ones.

    Items are matched by their ids. The learning rate falls in a line to a hundredth.
    """

    bundle: str
    """Folder of the trained model; ``--from`` sets it."""
    digest: str | None = None
    """SHA-256 of its manifest, which the run records; another one is refused."""
    epochs: float = Field(0.25, gt=0, le=1)
    """Epochs as a share of training.max_epochs, at least one; likewise training.patience."""
    learning_rate: float = Field(0.3, gt=0, le=10)
    """Peak learning rate as a share of training.learning_rate."""
    replay: float = Field(0.5, ge=0, lt=1)
    """Share of the histories of an epoch that have nothing new for the model; they are drawn anew
    in each epoch, which reads all others."""


class AllItems(Section):
    """Every target is ranked among the full catalogue."""

    kind: Literal["all"] = "all"


class SampledItems(Section):
    """Every target is ranked among a few random items, only to reproduce published metrics.

    Such metrics do not order models as the full catalogue does (Krichene and Rendle 2020).
    """

    kind: Literal["sampled"] = "sampled"
    num: int = Field(100, ge=1, le=MAX_COUNT)
    """Number of items drawn per user, beside the targets; of the history as ``seen`` says."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the draws."""
    by: Literal["uniform", "popularity"] = "uniform"
    """Equally likely, or in proportion to the interactions before the targets."""


class GivenItems(Section):
    """Every target is ranked among the candidates that a table names for its user."""

    kind: Literal["given"] = "given"
    file: Path
    """A table with the columns user_id and item_id, which includes every target of a user."""


CandidatesConfig = Annotated[
    AllItems | SampledItems | GivenItems, Field(discriminator="kind"), BeforeValidator(with_kind)
]

RequestTime = Literal["unknown", "known"]


class EvaluationConfig(Section):
    """The evaluation protocol."""

    seen: Literal["filter", "allow"] = "filter"
    """filter: items of the user's full history are not ranked; allow: repeat purchases count."""
    cutoffs: tuple[Annotated[int, Field(ge=1, le=MAX_COUNT)], ...] = (1, 5, 10, 20, 50, 100)
    """The k of recall@k and NDCG@k."""
    request_time: RequestTime = "unknown"
    """known: models with ``model.times: request`` read the time of the target. It is another
    protocol."""
    candidates: CandidatesConfig = AllItems()
    """The items that test targets are ranked among; validation targets, among all."""

    @field_serializer("candidates")
    def _in_short(self, candidates: CandidatesConfig) -> str | dict[str, Any]:
        return candidates.kind if candidates.kind == "all" else candidates.model_dump(mode="json")


BaselineName = Literal[
    "popularity",
    "recent_popularity",
    "repeat_last",
    "personal_frequency",
    "markov",
    "sequential_rules",
    "pctm",
    "transitions_and_repeats",
    "item_knn",
    "ease",
    "matrix_factorisation",
]

WITH_COUNTS = " + counts"
"""Suffix of the family of a model with a count ensemble."""


class CountEnsembleConfig(Section):
    """Counts whose weighted scores are added to those of a trained model (`CountEnsemble`)."""

    weights: tuple[PositiveFloat, ...] = Field(
        (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), min_length=1
    )
    """Weights of the counts to choose from on validation NDCG@10; 0 is always tried too."""


class TrackingConfig(Section):
    """Where MLflow stores the runs."""

    uri: str = "sqlite:///mlflow.db"
    """A database URL, or the address of an MLflow server."""
    experiment: str = "recsys"
    """Name of the MLflow experiment."""

    @property
    def database(self) -> Path | None:
        """The absolute path of a SQLite store; None for another kind of store."""
        scheme, _, path = self.uri.partition(":///")
        return Path(path).absolute() if scheme == "sqlite" else None

    @property
    def absolute_uri(self) -> str:
        """The URI for MLflow, which caches connections by it."""
        return self.uri if self.database is None else f"sqlite:///{self.database}"


class Experiment(Section):
    """One experiment: all settings that decide its result."""

    name: str = Field("experiment", pattern=r"^\w[\w.-]*$")
    """Name of the MLflow run and of the output folder; letters, digits, _ . and -."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the initial weights, the order of the batches, dropout and negative samples."""
    data: DataConfig = DataConfig()
    baseline: BaselineName | None = None
    """A baseline, whose settings validation chooses, in the place of the model."""
    model: ModelConfig = NextItemConfig()
    training: TrainingConfig = TrainingConfig()
    start: StartConfig | None = Field(None, exclude_if=lambda start: start is None)
    """The trained model that the training starts from. If None, it starts from random weights."""
    count_ensemble: CountEnsembleConfig | None = None
    """Settings of the count ensemble. If None, the model is used alone."""
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _can_be_fitted(self) -> Self:
        model, start, counts = self.model, self.start, self.count_ensemble
        teachers = [teacher.model for teacher in self.training.teachers]
        readers = any(map(reads_request_times, (model, *teachers)))
        if self.evaluation.request_time == "unknown" and readers:
            raise ValueError("evaluation.request_time must be known where model.times is request")
        if counts is not None and isinstance(model, SequenceToSequenceConfig):
            raise ValueError("count_ensemble: not supported by a model that generates purchases")
        if self.baseline is not None and start is not None:
            raise ValueError("baseline: has no weights to start from: leave start out")
        if self.baseline is not None and (model != NextItemConfig() or counts is not None):
            raise ValueError("baseline: has no model and no count_ensemble: leave them out")
        if teachers:
            if not isinstance(model, NextItemConfig | HSTUConfig):
                raise ValueError(f"training.teachers: no model of kind {model.kind} has any")
            if self.training.loss.kind != "cross_entropy":
                raise ValueError("training.teachers: need the loss cross_entropy")
            if reason := why_no_mean([model, *teachers]):
                raise ValueError(f"training.teachers: {reason}")
            heads = [getattr(teacher, "head", None) for teacher in teachers]
            if not all(isinstance(head, DotProduct | KernelAttention) for head in heads):
                raise ValueError("training.teachers: each needs a dot product or kernel attention")
        return self

    @model_validator(mode="after")
    def _can_have_soft_labels(self) -> Self:
        training = self.training
        trained: list[Any] = [m.model for m in self.members] or [self.model]
        fit = all(isinstance(model, NextItemConfig | HSTUConfig) for model in trained)
        full = training.loss.kind == "cross_entropy" and not training.teachers
        if training.soft_labels and not (fit and full):
            needed = "models of next items without teachers, and the loss cross_entropy"
            raise ValueError(f"training.soft_labels: need {needed}")
        return self

    @property
    def members(self) -> tuple[AveragedMember, ...]:
        """The models that are trained one by one: those of a mean, or the teachers of a model."""
        if isinstance(self.model, AveragedConfig):
            return self.model.members
        return self.training.teachers

    def with_data(self, prepared: DataConfig) -> Experiment:
        """Return the experiment with the data settings that a dataset was prepared with.

        Raises:
            InputError: the experiment sets another one, except of the log's place and columns.
        """
        for name in sorted(self.data.model_fields_set - {"source", "columns"}):
            wanted, made = getattr(self.data, name), getattr(prepared, name)
            if wanted != made:
                raise InputError(
                    f"data.{name}: the experiment has {wanted}, but the dataset was prepared with "
                    f"{made}: prepare it again, or leave data.{name} out of the experiment"
                )
        return self.model_copy(update={"data": prepared})

    def with_training(self, **changes: Any) -> Experiment:
        """Return the experiment with other settings of its training, which are not validated."""
        training = self.training.model_copy(update=changes)
        return self.model_copy(update={"training": training})

    @property
    def planned(self) -> Experiment:
        """The experiment as it is trained: the training of a warm start is shorter and gentler."""
        if (start := self.start) is None:
            return self
        return self.with_training(
            max_epochs=math.ceil(self.training.max_epochs * start.epochs),
            patience=math.ceil(self.training.patience * start.epochs),
            learning_rate=self.training.learning_rate * start.learning_rate,
            decay_fraction=1.0,
            average_weights=False,
        )

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
        if self.baseline is not None:
            return self.baseline
        return self.model.family + ("" if self.count_ensemble is None else WITH_COUNTS)
