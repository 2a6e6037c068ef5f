"""One experiment: data, model, training, evaluation and tracking."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from recsys.config.data import DataConfig
from recsys.config.model import (
    AveragedConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    reads_request_times,
)
from recsys.config.section import MAX_COUNT, MAX_SEED, Section, with_kind
from recsys.config.training import StartConfig, TrainingConfig
from recsys.errors import InputError


class AllItems(Section):
    """Every target is ranked among the full catalogue."""

    kind: Literal["all"] = "all"


class SampledItems(Section):
    """Every target is ranked among a few random items, only to reproduce published metrics.

    Such metrics do not order models as the full catalogue does (Krichene and Rendle 2020).
    """

    kind: Literal["sampled"] = "sampled"
    num: int = Field(100, ge=1, le=MAX_COUNT)
    """The number of items drawn per user, without replacement, in addition to the user's targets;
    items of the history are not drawn if ``evaluation.seen`` is ``filter``."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """The seed of the draws: every model is evaluated with the same items."""
    by: Literal["uniform", "popularity"] = "uniform"
    """uniform: with equal probability; popularity: in proportion to the interactions before the
    targets."""


class GivenItems(Section):
    """Every target is ranked among the candidates that a table names for its user."""

    kind: Literal["given"] = "given"
    file: Path
    """A table with the columns user_id and item_id, which includes every target of a user."""


CandidatesConfig = Annotated[
    AllItems | SampledItems | GivenItems, Field(discriminator="kind"), BeforeValidator(with_kind)
]

RequestTime = Literal["unknown", "known"]
"""known: scorers read the time of each request, which is the time of its target."""


class EvaluationConfig(Section):
    """The evaluation protocol."""

    seen: Literal["filter", "allow"] = "filter"
    """filter: items of the user's full history are not ranked (nor, unless training.exclude_seen is
    false, compared with the targets in training); allow: repeat purchases count."""
    cutoffs: tuple[Annotated[int, Field(ge=1, le=MAX_COUNT)], ...] = (1, 5, 10, 20, 50, 100)
    """The k of recall@k and NDCG@k."""
    request_time: RequestTime = "unknown"
    """known: a model may read the time of each request, which is the time of its target. Only some
    models do (``model.times: request``), which changes their metrics: it is another protocol."""
    candidates: CandidatesConfig = AllItems()
    """The items that test targets are ranked among. Validation targets are always ranked among all
    items."""

    @field_serializer("candidates")
    def _in_short(self, candidates: CandidatesConfig) -> str | dict[str, Any]:
        """Write ``all`` in short."""
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
        scheme, _, path = self.uri.partition(":///")
        return Path(path).absolute() if scheme == "sqlite" else None

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
        reads_times = model is not None and reads_request_times(model)
        if reads_times and evaluation.request_time == "unknown":
            raise ValueError("request_time must be known where model.times is request")
        return evaluation

    @model_validator(mode="after")
    def _can_be_fitted(self) -> Self:
        model, start, counts = self.model, self.start, self.count_ensemble
        if counts is not None and isinstance(model, SequenceToSequenceConfig):
            raise ValueError("count_ensemble: not supported by a model that generates purchases")
        if start is not None and isinstance(model, AveragedConfig):
            raise ValueError("start: not supported by a mean of models: train each one by itself")
        if self.baseline is not None and start is not None:
            raise ValueError("baseline: has no weights to start from: leave start out")
        if self.baseline is not None and (model != NextItemConfig() or counts is not None):
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
