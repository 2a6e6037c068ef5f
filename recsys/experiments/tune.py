"""Hyperparameter search with Optuna on validation; the test targets are never used."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import optuna
from optuna.trial import TrialState
from pydantic import Field, model_validator

from recsys.config.experiment import Experiment
from recsys.config.files import dump_experiment, flatten, parse_experiment
from recsys.config.section import MAX_COUNT, Section
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, did_you_mean
from recsys.evaluation.held_out import find_holdout
from recsys.folders import new_file, sole_use
from recsys.inference.catalogue import Catalogue
from recsys.progress import stage
from recsys.tracking.tracker import config_fingerprint
from recsys.training.epochs import MONITOR
from recsys.training.loop import train, with_enough_epochs

logger = logging.getLogger(__name__)

_WHOLE = 1000
"""The whole of a trial: its validations are reported in such parts of its epochs."""


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


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a search so far, in this call and earlier ones."""

    experiment: Experiment
    """The best one."""
    ndcg_at_10: float
    """Of its best epoch on validation."""
    trials: int
    """Finished or pruned ones."""
    pruned: int
    study: str
    """Its name in Optuna's storage."""
    storage: str

    def write(self, path: Path) -> None:
        """Write the best experiment as YAML, atomically."""
        found = f"# Validation NDCG@10 {self.ndcg_at_10:.4f}, the best of {self.trials} trials.\n"
        with new_file(path) as file:
            file.write_text(found + dump_experiment(self.experiment), encoding="utf-8")


def tune(experiment: Experiment, dataset: PreparedDataset, search: Search) -> Tuned:
    """Search for the settings with the best validation NDCG@10; the test targets are never used.

    A trial is a training on the training part. It is pruned once its validation NDCG@10 is below
    the median of the other trials at that epoch, but not in the first fifth of its epochs, nor
    among the first five trials. The study is stored in ``optuna.db`` next to the MLflow store (in
    the working directory if that is not a file) and resumes when it is called again with the same
    experiment, data and search space. Ctrl-C ends the search early.

    Raises:
        InputError: a field of the space is unknown, the model is a mean of others or has teachers,
            the experiment has other data settings than the dataset, another process runs the
            search, or no trial has finished.
        KeyboardInterrupt: Ctrl-C before any trial has finished.
    """
    if experiment.start is not None:
        raise InputError("tune: trains from random weights: leave start out of the experiment")
    if experiment.members:
        raise InputError("tune: of a mean, or with teachers: tune each model by itself")
    experiment = experiment.with_data(dataset.config)
    known = [name for name in flatten(experiment) if name.startswith(("model.", "training."))]
    for name in search.space:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"tune: space: {name}: {experiment.name} has no such field{hint}")
    space = {f"space.{name}": str(values) for name, values in search.space.items()}
    planned = with_enough_epochs(experiment, dataset)  # refuses what no trial could be trained on
    identity = config_fingerprint(dataset, "tune", flatten(planned) | space)
    name = f"{experiment.name}-{identity[:8]}"
    database = experiment.tracking.database or Path("mlflow.db").absolute()
    storage = f"sqlite:///{database.with_name('optuna.db')}"
    with sole_use(database.with_name(name), "runs the search"):
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # this module logs what users must know
        with sole_use(database.with_name("optuna.db"), "opens it", 20):  # and makes its tables
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=_WHOLE // 5),
                direction="maximize",
                load_if_exists=True,
            )
        # A sampler with the same seed would repeat its earlier proposals.
        study.sampler = optuna.samplers.TPESampler(
            seed=(experiment.seed + len(study.trials)) % 2**32  # as large as numpy's may be
        )
        left = None if search.trials is None else max(search.trials - len(_trials(study)), 0)
        try:
            if left != 0:
                _search(study, experiment, dataset, search, left)
        except KeyboardInterrupt:
            if not _trials(study, TrialState.COMPLETE):
                raise
            logger.warning("stopped by Ctrl-C: the best so far is used; run again to resume")
    if not _trials(study, TrialState.COMPLETE):
        raise InputError(f"tune: none of the trials of {name} has finished")
    best, done = study.best_trial, _trials(study)
    logger.info("best: trial %d, %s", best.number, best.params)
    tuned = _with(experiment, dataset, best.params)
    tuned = tuned.model_copy(update={"name": f"{experiment.name}-tuned"})
    pruned = sum(trial.state is TrialState.PRUNED for trial in done)
    return Tuned(tuned, study.best_value, len(done), pruned, name, storage)


def _trials(study: optuna.Study, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
    """Return the trials in one of some states; those finished or pruned if none is given."""
    done = states or (TrialState.COMPLETE, TrialState.PRUNED)
    return study.get_trials(deepcopy=False, states=done)


def _search(
    study: optuna.Study,
    experiment: Experiment,
    dataset: PreparedDataset,
    search: Search,
    trials: int | None,
) -> None:
    with stage(f"{experiment.name}: trials", trials) as line:

        def attempt(trial: optuna.Trial) -> float:
            values = {name: _propose(trial, name, search) for name in search.space}
            try:
                candidate = _with(experiment, dataset, values)
            except InputError as error:  # incompatible values
                logger.warning("trial %d: %s", trial.number, error)
                raise optuna.TrialPruned from error

            epochs, reported = candidate.training.max_epochs, 0

            def report(epoch: int, metrics: dict[str, float]) -> None:
                nonlocal reported
                share = _WHOLE * epoch // epochs  # trials may have other numbers of epochs
                if MONITOR in metrics and share > reported:
                    reported = share
                    trial.report(metrics[MONITOR], share)
                    if trial.should_prune():
                        raise optuna.TrialPruned

            catalogue = Catalogue.of(candidate.model, dataset)
            encoded = catalogue.encoders.read(dataset)
            histories = encoded.histories("valid")
            holdout = find_holdout(encoded, "valid", experiment.evaluation.request_time)
            candidate = candidate.model_copy(update={"name": f"trial {trial.number}"})
            try:
                _, curve = train(candidate, catalogue, histories, holdout, epochs, report)
            except InputError as error:  # diverged, or too large for the memory
                logger.warning("trial %d: %s", trial.number, error)
                raise optuna.TrialPruned from error
            if curve.interrupted:
                raise KeyboardInterrupt
            return curve.best

        def show(_: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            finished = _trials(study, TrialState.COMPLETE)
            best = f"best valid NDCG@10 {study.best_value:.4f}" if finished else ""
            line.say(best, advance=1)
            value = "pruned" if trial.value is None else f"{trial.value:.4f}"
            logger.info("trial %d: %s, %s", trial.number, value, trial.params)

        seconds = None if search.minutes is None else search.minutes * 60
        study.optimize(attempt, n_trials=trials, timeout=seconds, callbacks=[show])


def _propose(trial: optuna.Trial, name: str, search: Search) -> Any:
    dimension = search.space[name]
    if not isinstance(dimension, Range):
        return trial.suggest_categorical(name, dimension.choices)
    low, high = dimension.low, dimension.high
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=dimension.log)
    return trial.suggest_float(name, low, high, log=dimension.log)


def _with(
    experiment: Experiment, dataset: PreparedDataset, values: Mapping[str, Any]
) -> Experiment:
    """Return the experiment with other values of some fields, and the epochs that suit them."""
    overrides = [f"{name}={json.dumps(value)}" for name, value in values.items()]
    changed = parse_experiment(experiment.model_dump(mode="json"), overrides, "tune")
    named = experiment.training.model_fields_set | {
        name.removeprefix("training.") for name in values
    }
    return with_enough_epochs(changed, dataset, named)
