"""One experiment: data, model, training, evaluation and tracking."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    PositiveFloat,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from recsys.config.data import DataConfig
from recsys.config.evaluation import EvaluationConfig
from recsys.config.loss import CrossEntropy, LossConfig
from recsys.config.model import HSTUConfig, ModelConfig, NextItemConfig, SequenceToSequenceConfig
from recsys.config.section import MAX_COUNT, MAX_SEED, Section
from recsys.errors import InputError

BaselineName = Literal[
    "popularity",
    "recent_popularity",
    "repeat_last",
    "personal_frequency",
    "markov",
    "sequential_rules",
    "pctm",
    "item_knn",
    "ease",
    "matrix_factorisation",
]
"""The baselines; see `recsys.baselines.tuned`."""

WITH_COUNTS = " + counts"
"""Suffix of the family of a model with a count ensemble."""


class TrainingConfig(Section):
    """How the model is trained."""

    max_epochs: int = Field(40, ge=1, le=MAX_COUNT)
    """Maximum number of epochs: passes over the training part, unless epochs_per_pass divides
    them."""
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
    loss: LossConfig = CrossEntropy()
    """cross_entropy compares each target with the full catalogue; the other losses compare it with
    sampled negatives, so that the cost of a step does not depend on the catalogue's size."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target probability that cross_entropy spreads evenly over all items."""
    gradient_clip: float = Field(5.0, gt=0)
    """Maximum norm of the gradient; larger gradients are scaled down to it."""
    batch_tokens: int = Field(12_800, ge=1, le=10**9)
    """Number of tokens in a batch, including padding, over all processes."""
    windows: Literal["newest", "all"] = "newest"
    """Training windows of a history longer than model.max_sequence_length. newest: its newest
    items; all: consecutive windows over the entire history, so that every item but the first is a
    target once. A sequence_to_sequence model always trains on random cuts of the entire history."""
    checkpoint_minutes: float = Field(5.0, ge=0, le=10**6)
    """Number of minutes between checkpoints; another one is saved at the end of each epoch."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Precision of matrix products. auto: on a GPU bf16 if it has it; on a CPU whichever is faster,
    measured when a training begins and kept for its refit and where it resumes."""
    refit: bool = False
    """Whether to train again from scratch on all but the test targets, for the number of epochs
    that validation found best; the learning rate decays at the end of those."""

    @field_validator("label_smoothing")
    @classmethod
    def _has_all_items(cls, label_smoothing: float, info: ValidationInfo) -> float:
        loss = info.data.get("loss")
        if label_smoothing and loss is not None and loss.kind != "cross_entropy":
            raise ValueError(f"must be 0 with loss {loss.kind}, which does not see all items")
        return label_smoothing

    @field_serializer("loss")
    def _in_short(self, loss: LossConfig) -> str | dict[str, Any]:
        """Abbreviate the default loss to its kind."""
        return loss.kind if loss.kind == "cross_entropy" else loss.model_dump(mode="json")


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
        prefix = "sqlite:///"
        return (
            Path(self.uri.removeprefix(prefix)).absolute() if self.uri.startswith(prefix) else None
        )

    @property
    def absolute_uri(self) -> str:
        """The URI passed to MLflow.

        MLflow caches connections by URI: a relative path would keep pointing to the first working
        directory of the process.
        """
        return self.uri if self.database is None else f"sqlite:///{self.database}"


class Experiment(Section):
    """One experiment: all settings that decide its result."""

    name: str = Field("experiment", pattern=r"^\w[\w.-]*$")
    """Name of the MLflow run and of the output folder; letters, digits, _ . and -."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the initial weights, the order of the batches, dropout and negative samples."""
    data: DataConfig = DataConfig()
    baseline: BaselineName | None = None
    """A baseline that is fitted in the place of a model: its settings are chosen on validation. If
    None, the model is trained."""
    model: ModelConfig = NextItemConfig()
    training: TrainingConfig = TrainingConfig()
    count_ensemble: CountEnsembleConfig | None = None
    """Settings of the count ensemble. If None, the model is used alone."""
    evaluation: EvaluationConfig = Field(EvaluationConfig(), validate_default=True)
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("evaluation")
    @classmethod
    def _passes_request_times(
        cls, evaluation: EvaluationConfig, info: ValidationInfo
    ) -> EvaluationConfig:
        model = info.data.get("model")
        with_request_time = isinstance(model, HSTUConfig) and model.times == "request"
        if with_request_time and evaluation.request_time == "unknown":
            raise ValueError("request_time must be known where model.times is request")
        return evaluation

    @model_validator(mode="after")
    def _can_add_counts(self) -> Experiment:
        if self.count_ensemble is not None and isinstance(self.model, SequenceToSequenceConfig):
            raise ValueError("count_ensemble: not supported by a model that generates purchases")
        return self

    @model_validator(mode="after")
    def _has_one_answer(self) -> Experiment:
        has_model = self.model != NextItemConfig() or self.count_ensemble is not None
        if self.baseline is not None and has_model:
            raise ValueError("baseline: has no model and no count_ensemble: leave them out")
        return self

    def with_data(self, prepared: DataConfig) -> Experiment:
        """Return the experiment with the data settings that a dataset was prepared with.

        Where the log is and how its columns are named does not matter.

        Args:
            prepared: the data settings of the dataset.

        Raises:
            InputError: the experiment explicitly sets another value.
        """
        for name in sorted(self.data.model_fields_set - {"source", "mirror", "columns"}):
            wanted, given = getattr(self.data, name), getattr(prepared, name)
            if wanted != given:
                raise InputError(
                    f"data.{name}: the experiment has {wanted}, but the dataset was prepared with "
                    f"{given}: prepare it again, or leave data.{name} out of the experiment"
                )
        return self.model_copy(update={"data": prepared})

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
        if self.baseline is not None:
            return self.baseline
        return self.model.family + ("" if self.count_ensemble is None else WITH_COUNTS)
