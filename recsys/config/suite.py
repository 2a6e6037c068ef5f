"""A suite: every model and baseline on every dataset, with several seeds."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import Field, field_validator

from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.files import load_section, parse_experiment
from recsys.config.section import MAX_SEED, Section

Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
"""Letters, digits, _ . and -; part of the names of runs and folders."""


class _Fields(Section):
    """Fields of an experiment by section; the others have their defaults."""

    data: dict[str, Any] = Field(default_factory=dict)
    """Fields of `DataConfig`."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Fields of the model."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Fields of `TrainingConfig`."""
    count_ensemble: dict[str, Any] | None = None
    """Fields of `CountEnsembleConfig`; ``{}`` for the defaults. If None, no count ensemble."""
    evaluation: dict[str, Any] = Field(default_factory=dict)
    """Fields of `EvaluationConfig`."""


class SuiteEntry(_Fields):
    """A dataset or a model of a suite, with the fields that it sets."""

    name: Name
    """Name of the dataset or model."""


class Suite(_Fields):
    """Datasets × models × seeds, and datasets × baselines.

    An experiment has the fields of the suite, overridden by those of its dataset, overridden by
    those of its model.
    """

    name: Name = "suite"
    """Name of the suite."""
    seeds: tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...] = Field((0,), min_length=1)
    """Seeds that every model is trained with; baselines use the first."""
    datasets: tuple[SuiteEntry, ...] = Field(min_length=1)
    """The datasets."""
    models: tuple[SuiteEntry, ...] = ()
    """The models."""
    baselines: tuple[str, ...] | None = None
    """Names of the baselines. If None, all that are informative under the protocol."""
    tracking: TrackingConfig = TrackingConfig()
    """Where the runs are stored."""

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("must not repeat")
        return seeds

    @field_validator("models")
    @classmethod
    def _models_decide_no_protocol(cls, models: tuple[SuiteEntry, ...]) -> tuple[SuiteEntry, ...]:
        for entry in models:
            if entry.data or entry.evaluation:
                raise ValueError(f"{entry.name!r}: data and evaluation belong to a dataset")
        return models

    @field_validator("datasets", "models")
    @classmethod
    def _names_differ(cls, entries: tuple[SuiteEntry, ...]) -> tuple[SuiteEntry, ...]:
        names = [entry.name for entry in entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{min(twice)!r} is used twice")
        return entries

    def experiment(self, dataset: SuiteEntry, model: SuiteEntry, seed: int) -> Experiment:
        """Return the experiment of a model on a dataset, named SUITE-DATASET-MODEL-sSEED.

        Raises:
            InputError: fields are unknown, wrong or incompatible.
        """
        name = f"{self.name}-{dataset.name}-{model.name}-s{seed}"
        return self._experiment(name, seed, dataset, model)

    def protocol(self, dataset: SuiteEntry) -> Experiment:
        """Return the experiment that decides the baselines of a dataset, named SUITE-DATASET.

        Raises:
            InputError: as `experiment`.
        """
        return self._experiment(f"{self.name}-{dataset.name}", self.seeds[0], dataset)

    def _experiment(self, name: str, seed: int, *entries: SuiteEntry) -> Experiment:
        tree: dict[str, Any] = {"name": name, "seed": seed}
        tree["tracking"] = self.tracking.model_dump()
        for fields in (self, *entries):
            given = fields.model_fields_set & _Fields.model_fields.keys()
            tree = _merged(tree, fields.model_dump(include=given))
        return parse_experiment(tree, origin=f"suite {self.name}, {name}")


def load_suite(path: str | os.PathLike[str]) -> Suite:
    """Read a suite from YAML.

    Raises:
        InputError: the file cannot be read, or fields of the suite or of one of its experiments are
            unknown or wrong.
    """
    suite = load_section(path, Suite)
    for dataset in suite.datasets:
        suite.protocol(dataset)
        for model in suite.models:
            suite.experiment(dataset, model, suite.seeds[0])
    return suite


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Merge two trees by section; the second one overrides the first."""
    merged = dict(first)
    for key, value in second.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _merged(known, value) if both else value  # type: ignore[arg-type]
    return merged
