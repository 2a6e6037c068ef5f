"""Many runs: suites, which resume where they were interrupted, and backtests, fold by fold."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from recsys.config.experiment import BaselineName, Experiment, TrackingConfig
from recsys.config.files import flatten, load_section, merged, parse_experiment
from recsys.config.section import MAX_SEED, Section
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable, pool_folds
from recsys.experiments.baselines import baseline_settings, baselines_of, beside, fit_baseline
from recsys.experiments.fit import fit
from recsys.folders import BusyError, sole_use
from recsys.progress import new_progress, stage
from recsys.tracking.store import find_runs, open_store
from recsys.tracking.tracker import RecordError, finished_run
from recsys.training.checkpoints import CheckpointError
from recsys.training.loop import with_enough_epochs

logger = logging.getLogger(__name__)

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


def run_suite(
    suite: Suite, prepared: Callable[[Experiment], PreparedDataset], out: Path = Path("runs")
) -> dict[str, list[str]]:
    """Run all runs of a suite that are not finished; an interrupted suite resumes.

    A run is finished if the tracking store has one of that name, data, model and settings. One that
    refuses its data, as EASE refuses a large catalogue, is skipped with a warning. ``prepared``
    finds or prepares the dataset of an experiment; trained models go to folders in ``out``.

    Returns:
        The MLflow runs by the name of the dataset: the models, then the baselines in the reverse
        order of `BASELINES`.

    Raises:
        InputError: a dataset or the store cannot be used, or another process runs the suite or one
            of its runs.
        KeyboardInterrupt: Ctrl-C; finished runs are kept.
    """
    runs: dict[str, list[str]] = {}
    open_store(suite.tracking)  # an experiment that is refused is skipped
    with sole_use(out / suite.name, "runs the suite"), new_progress() as progress:
        for number, entry in enumerate(suite.datasets, 1):
            protocol = suite.experiment(entry)
            dataset = prepared(protocol)
            experiments = list(_experiments(suite, entry, protocol, dataset))
            title = f"{suite.name}: {entry.name}, {number} of {len(suite.datasets)} datasets"
            bar = progress.add_task(title, total=len(experiments), status="")
            runs[entry.name] = []
            for experiment in progress.track(experiments, task_id=bar):
                progress.update(bar, status=experiment.name)
                try:
                    runs[entry.name].append(_run(experiment, dataset, out / experiment.name))
                except (CheckpointError, BusyError, RecordError):  # else epochs would be lost
                    raise
                except InputError as error:
                    logger.warning("%s: skipped: %s", experiment.name, error)
            progress.update(bar, status="")
    return runs


def _experiments(
    suite: Suite, entry: SuiteEntry, protocol: Experiment, dataset: PreparedDataset
) -> Iterator[Experiment]:
    for model in suite.models:
        for seed in suite.seeds:
            experiment = suite.experiment(entry, model, seed)
            with suppress(InputError):  # there is nothing to train on, as the training says too
                experiment = with_enough_epochs(experiment, dataset)
            yield experiment
    names = baselines_of(protocol, dataset) if suite.baselines is None else suite.baselines
    for name in names[::-1]:
        yield beside(protocol, name)


def _run(experiment: Experiment, dataset: PreparedDataset, out: Path) -> str:
    """Return the id of an experiment's run, finished now or before."""
    is_model, started = experiment.baseline is None, time.perf_counter()
    settings = flatten(experiment) if is_model else baseline_settings(experiment)
    identity = experiment, dataset, experiment.family, settings
    if (done := finished_run(*identity)) is not None:
        logger.info("%s: already finished, run %s", experiment.name, done[:8])
        return done
    run = fit(experiment, dataset, out) if is_model else fit_baseline(experiment, dataset)
    # Ctrl-C ended the training early, without an exception
    if finished_run(*identity) is None:
        raise KeyboardInterrupt
    seconds = time.perf_counter() - started
    logger.info("%s: %.0f s, run %s", experiment.name, seconds, run.run_id[:8])
    return run.run_id


MODEL = "model"
"""The name of the experiment's own model among the names of baselines."""


def backtest(
    name: str, experiment: Experiment, datasets: Sequence[PreparedDataset]
) -> tuple[list[RankTable], RankTable]:
    """Fit `MODEL` or a baseline on each fold separately; return its ranks of each, and of all.

    Fold i is called NAME-fold-i and written to runs/NAME-fold-i; it has the settings of its data.
    Folds that are finished are not fitted again: an interrupted backtest resumes.

    Raises:
        InputError: a fold has nothing to train on or to evaluate, or the store cannot be used.
        KeyboardInterrupt: Ctrl-C; finished folds are kept.
    """
    if name == MODEL and experiment.start is not None:
        raise InputError("backtest: trains from random weights: leave start out of the experiment")
    runs = []
    with stage(f"backtest of {name}", len(datasets)) as line:
        for number, dataset in enumerate(datasets, 1):
            line.say(f"fold {number} of {len(datasets)}")
            update = {"name": f"{experiment.name}-fold-{number}", "data": dataset.config}
            fold = experiment.model_copy(update=update)
            fold = with_enough_epochs(fold, dataset) if name == MODEL else beside(fold, name)
            runs.append(_run(fold, dataset, Path("runs") / fold.name))
            line.advance()
    found = find_runs(runs, experiment.tracking, "test")
    tables = [run.ranks for run in found if not run.model_alone]
    return tables, pool_folds(tables, [dataset.user_ids for dataset in datasets])
