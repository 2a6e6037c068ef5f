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
from recsys.config.section import Section

WITH_COUNTS = " + counts"
"""Ends the family of a model that has counts beside it."""


class TrainingConfig(Section):
    """How the weights are found."""

    max_epochs: int = Field(40, ge=1)
    validate_every: int = Field(1, ge=1)
    """Epochs between validations (the last is always validated)."""
    patience: int = Field(10, ge=1)
    """Epochs without a better validation NDCG@10 before the learning rate falls (hold_decay), and,
    since it falls, before stopping."""
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["hold_decay", "inverse_square_root"] = "hold_decay"
    """After the warm-up: hold the learning rate, then let it fall to a hundredth; or divide it by
    the square root of the step, as in 2017."""
    warmup_steps: int = Field(100, ge=0)
    """Steps over which the learning rate rises to its full value; at most a tenth of all steps."""
    decay_fraction: float = Field(0.3, ge=0, le=1)
    """Share of the epochs, at the end, over which the learning rate falls (hold_decay alone)."""
    loss: LossConfig = CrossEntropy()
    """Full cross-entropy where the catalogue allows it; the others hold each target against a few
    items, and a step then costs no more for a larger catalogue."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of each target's probability that cross-entropy spreads evenly over all items."""
    gradient_clip: float = Field(5.0, gt=0)
    """Largest norm of the gradient."""
    ema_decay: float = Field(0.0, ge=0, le=0)
    """There was a moving average of the weights, which did not help. That there is none is still
    said, so that runs, checkpoints and bundles of before are known again."""
    batch_tokens: int = Field(12_800, ge=1)
    """Tokens per batch, padding included; of all processes together where several train."""
    windows: Literal["newest", "all"] = "newest"
    """What of a history longer than model.max_sequence_length is learned from: its newest items, or
    all, one window after the other, so that every item but the first is a target once. (A
    sequence_to_sequence model is always trained on cuts through all.)"""
    checkpoint_minutes: float = Field(5.0, ge=0)
    """Minutes between checkpoints, of which there is one at the end of each epoch besides."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """auto: bf16 where the processor multiplies it fast, float32 elsewhere."""
    refit: bool = False
    """After the best epoch is found on validation, train again from the start on all but the test
    targets, for as many epochs (the learning rate falls at the end of those)."""

    @field_validator("label_smoothing")
    @classmethod
    def _has_all_items(cls, label_smoothing: float, info: ValidationInfo) -> float:
        loss = info.data.get("loss")
        if label_smoothing and loss is not None and loss.kind != "cross_entropy":
            raise ValueError(f"must be 0 with loss {loss.kind}, which does not see all items")
        return label_smoothing

    @field_serializer("loss")
    def _in_short(self, loss: LossConfig) -> str | dict[str, Any]:
        """``cross_entropy`` where it is that."""
        return loss.kind if loss.kind == "cross_entropy" else loss.model_dump(mode="json")


class CountEnsembleConfig(Section):
    """Counts whose scores are added to a trained model's (`CountEnsemble`)."""

    weights: tuple[PositiveFloat, ...] = Field(
        (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), min_length=1
    )
    """What validation NDCG@10 chooses the weights of the counts from; 0, the model alone, is always
    among them."""


class TrackingConfig(Section):
    """Where MLflow keeps the runs."""

    uri: str = "sqlite:///mlflow.db"
    """A database URL, or the address of an MLflow server."""
    experiment: str = "recsys"

    @property
    def database(self) -> Path | None:
        """File of a SQLite store, absolute; None if the store is another."""
        prefix = "sqlite:///"
        return (
            Path(self.uri.removeprefix(prefix)).absolute() if self.uri.startswith(prefix) else None
        )

    @property
    def absolute_uri(self) -> str:
        """The URI that MLflow is given.

        It keeps connections by URI: a relative path in it would go on meaning the process's first
        working directory.
        """
        return self.uri if self.database is None else f"sqlite:///{self.database}"


class Experiment(Section):
    """One experiment: all that decides its result but the data itself."""

    name: str = Field("experiment", pattern=r"^\w[\w.-]*$")
    """Name of the MLflow run and of the folder of its outputs; letters, digits, _ . and -."""
    seed: int = Field(0, ge=0)
    data: DataConfig = DataConfig()
    model: ModelConfig = NextItemConfig()
    training: TrainingConfig = TrainingConfig()
    count_ensemble: CountEnsembleConfig | None = None
    """None: the model alone."""
    evaluation: EvaluationConfig = Field(EvaluationConfig(), validate_default=True)
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("evaluation")
    @classmethod
    def _says_what_the_model_is_told(
        cls, evaluation: EvaluationConfig, info: ValidationInfo
    ) -> EvaluationConfig:
        model = info.data.get("model")
        told = isinstance(model, HSTUConfig) and model.times == "request"
        if told and evaluation.request_time == "unknown":
            raise ValueError("request_time must be known where model.times is request")
        return evaluation

    @model_validator(mode="after")
    def _reads_counts(self) -> Experiment:
        if self.count_ensemble is not None and isinstance(self.model, SequenceToSequenceConfig):
            raise ValueError("count_ensemble: a model that writes purchases reads no counts")
        return self

    @property
    def family(self) -> str:
        """What runs are told apart by."""
        return self.model.family + ("" if self.count_ensemble is None else WITH_COUNTS)
