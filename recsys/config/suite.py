"""A suite: every model and baseline on every dataset, with several seeds."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import Field, field_validator

from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.files import load_section, parse_experiment
from recsys.config.section import Section

Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
"""Letters, digits, _ . and -: names of runs and folders are made of it."""


class _Fields(Section):
    """Fields of an experiment, section by section; those not given are as usual."""

    data: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    count_ensemble: dict[str, Any] | None = None
    """``{}`` for counts beside the models, as usual; None for none."""
    evaluation: dict[str, Any] = Field(default_factory=dict)


class SuiteEntry(_Fields):
    """A dataset or a model of a suite: what of the experiments it decides."""

    name: Name


class Suite(_Fields):
    """Datasets × models × seeds, and datasets × baselines.

    An experiment has the fields of the suite, those of its dataset and those of its model: of a
    field that several of them give, the last holds.
    """

    name: Name = "suite"
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1)
    """Every model is trained with each; baselines need but one."""
    datasets: tuple[SuiteEntry, ...] = Field(min_length=1)
    models: tuple[SuiteEntry, ...] = ()
    baselines: tuple[str, ...] | None = None
    """None: all that say something under the protocol."""
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("each may be there once")
        return seeds

    @field_validator("models")
    @classmethod
    def _models_decide_no_protocol(cls, models: tuple[SuiteEntry, ...]) -> tuple[SuiteEntry, ...]:
        for entry in models:
            if entry.data or entry.evaluation:
                raise ValueError(f"{entry.name!r}: data and evaluation are the dataset's to decide")
        return models

    @field_validator("datasets", "models")
    @classmethod
    def _names_differ(cls, entries: tuple[SuiteEntry, ...]) -> tuple[SuiteEntry, ...]:
        names = [entry.name for entry in entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two have the name {min(twice)!r}")
        return entries

    def experiment(self, dataset: SuiteEntry, model: SuiteEntry, seed: int) -> Experiment:
        """One training of a model, named SUITE-DATASET-MODEL-sSEED.

        Raises:
            InputError: fields are unknown or wrong, or do not go together.
        """
        name = f"{self.name}-{dataset.name}-{model.name}-s{seed}"
        return self._experiment(name, seed, dataset, model)

    def protocol(self, dataset: SuiteEntry) -> Experiment:
        """What the baselines of a dataset are fitted under, named SUITE-DATASET.

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
        InputError: the file cannot be read, or fields are unknown or wrong: of the suite itself, or
            of any of its experiments.
    """
    suite = load_section(path, Suite)
    for dataset in suite.datasets:
        suite.protocol(dataset)
        for model in suite.models:
            suite.experiment(dataset, model, suite.seeds[0])
    return suite


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both, section by section; where both give a value, the second's."""
    merged = dict(first)
    for key, value in second.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = _merged(known, value) if both else value  # type: ignore[arg-type]
    return merged
