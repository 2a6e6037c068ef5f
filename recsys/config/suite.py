"""Files beside experiments: suites of many runs, and the spaces of searches."""

import os
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from recsys.config.experiment import BaselineName, Experiment, TrackingConfig
from recsys.config.files import load_section, merged, parse_experiment
from recsys.config.section import MAX_COUNT, MAX_SEED, Section
from recsys.errors import InputError

Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
"""Letters, digits, _ . and -; part of the names of runs and folders."""


class _Fields(Section):
    """Fields of an experiment by section; the others have their defaults."""

    data: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    count_ensemble: dict[str, Any] | None = None
    """``{}`` for one with the defaults."""
    evaluation: dict[str, Any] = Field(default_factory=dict)


class SuiteEntry(_Fields):
    """A dataset or a model of a suite, with the fields that it sets."""

    name: Name


class Suite(_Fields):
    """Datasets × models × seeds, and datasets × baselines.

    An experiment has the fields of the suite, overridden by those of its dataset, overridden by
    those of its model.
    """

    name: Name = "suite"
    seeds: tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...] = Field((0,), min_length=1)
    """Every model is trained with each; baselines use the first."""
    datasets: tuple[SuiteEntry, ...] = Field(min_length=1)
    models: tuple[SuiteEntry, ...] = ()
    baselines: tuple[BaselineName, ...] | None = None
    """Names of the baselines. If None, all that are informative under the protocol."""
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("models")
    @classmethod
    def _decide_no_protocol(cls, models: tuple[SuiteEntry, ...]) -> tuple[SuiteEntry, ...]:
        for entry in models:
            if entry.data or entry.evaluation:
                raise ValueError(f"{entry.name!r}: data and evaluation belong to a dataset")
        return models

    @field_validator("seeds", "datasets", "models")
    @classmethod
    def _differ(cls, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [entry.name if isinstance(entry, SuiteEntry) else entry for entry in entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{min(twice)!r} is used twice")
        return entries

    def experiment(
        self, dataset: SuiteEntry, model: SuiteEntry | None = None, seed: int | None = None
    ) -> Experiment:
        """Return the experiment of a model on a dataset, named SUITE-DATASET-MODEL-sSEED.

        Without a model it decides the baselines of the dataset, and is named SUITE-DATASET.
        """
        seed = self.seeds[0] if seed is None else seed
        name = f"{self.name}-{dataset.name}" + (f"-{model.name}-s{seed}" if model else "")
        tree: dict[str, Any] = {"name": name, "seed": seed, "tracking": self.tracking.model_dump()}
        for fields in (self, dataset, *([model] if model else [])):
            named = fields.model_fields_set & _Fields.model_fields.keys()
            tree = merged(tree, fields.model_dump(include=named))
        return parse_experiment(tree, origin=f"suite {self.name}, {name}")


def load_suite(path: str | os.PathLike[str]) -> Suite:
    """Read a suite from YAML, and check all of its experiments; see `load_experiment`."""
    suite = load_section(path, Suite)
    models = (None, *suite.models)
    names = [suite.experiment(data, model).name for data in suite.datasets for model in models]
    if len({*names}) < len(names):
        raise InputError(f"{path}: two experiments are called {max(names, key=names.count)}")
    return suite


class Range(Section):
    """Numbers from low to high, inclusive; integers if both are."""

    low: int | float
    high: int | float
    log: bool = False
    """Whether to sample on a logarithmic scale."""

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, {self.high}")
        if self.log and self.low <= 0:
            raise ValueError("low must be above 0 if log is true")
        return self


class Choices(Section):
    """One of several values."""

    choices: tuple[bool | int | float | str | None, ...] = Field(min_length=1)


class Search(Section):
    """The fields of an experiment to search, and the budget."""

    space: dict[str, Range | Choices] = Field(min_length=1)
    """Fields of the sections model and training by dotted name, e.g. ``model.dropout``."""
    trials: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = 50
    """Number of trials of the study, including earlier calls."""
    minutes: float | None = Field(None, gt=0, le=10**8)
    """Number of minutes after which this call starts no more trials."""

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.trials is None and self.minutes is None:
            raise ValueError("give trials, minutes or both: a search needs a limit")
        return self
