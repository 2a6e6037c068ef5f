"""One experiment: data, model, training, evaluation and tracking."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, ValidationInfo, field_validator, model_validator

from recsys.config.averaged import AveragedConfig, ModelConfig, reads_request_times
from recsys.config.data import DataConfig
from recsys.config.evaluation import EvaluationConfig
from recsys.config.model import NextItemConfig, SequenceToSequenceConfig
from recsys.config.section import MAX_SEED, Section
from recsys.config.start import StartConfig
from recsys.config.training import TrainingConfig
from recsys.errors import InputError

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
"""The baselines; see `recsys.baselines.tuned`."""

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
    start: StartConfig | None = Field(None, exclude_if=lambda start: start is None)
    """The trained model that the training starts from. If None, it starts from random weights."""
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
        with_request_time = model is not None and reads_request_times(model)
        if with_request_time and evaluation.request_time == "unknown":
            raise ValueError("request_time must be known where model.times is request")
        return evaluation

    @model_validator(mode="after")
    def _can_add_counts(self) -> Experiment:
        if self.count_ensemble is not None and isinstance(self.model, SequenceToSequenceConfig):
            raise ValueError("count_ensemble: not supported by a model that generates purchases")
        return self

    @model_validator(mode="after")
    def _can_start(self) -> Experiment:
        if self.start is not None and isinstance(self.model, AveragedConfig):
            raise ValueError("start: not supported by a mean of models: train each one by itself")
        return self

    @model_validator(mode="after")
    def _has_one_answer(self) -> Experiment:
        if self.baseline is not None and self.start is not None:
            raise ValueError("baseline: has no weights to start from: leave start out")
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
    def planned(self) -> Experiment:
        """The experiment as it is trained: the training of a warm start is shorter and gentler."""
        if self.start is None:
            return self
        return self.model_copy(update={"training": self.start.applied_to(self.training)})

    @property
    def family(self) -> str:
        """The kind of model, which distinguishes runs."""
        if self.baseline is not None:
            return self.baseline
        return self.model.family + ("" if self.count_ensemble is None else WITH_COUNTS)
