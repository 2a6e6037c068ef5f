"""Many runs: suites, which resume where they were interrupted, and backtests, fold by fold."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment, Suite, SuiteEntry, flatten
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable, pool_folds
from recsys.experiments.baselines import baseline_settings, baselines_of, fit_baseline
from recsys.experiments.fit import fit
from recsys.folders.locks import BusyError, sole_use
from recsys.progress import new_progress, shown, stage
from recsys.tracking.runs import find_runs
from recsys.tracking.tracker import finished_run
from recsys.training.checkpoints import CheckpointError
from recsys.training.refit import with_enough_epochs

logger = logging.getLogger(__name__)


class _Step(NamedTuple):
    """One run of a suite."""

    experiment: Experiment
    baseline: str | None
    """None for a training."""

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.experiment.name + ("" if self.baseline is None else f"-{self.baseline}")


def run_suite(
    suite: Suite,
    prepared: Callable[[Experiment], PreparedDataset],
    out: Path = Path("runs"),
) -> dict[str, list[str]]:
    """Run all runs of a suite that are not finished; an interrupted suite resumes.

    A run is finished if the tracking store has one of the same data, model and settings. A run that
    refuses its data, as EASE refuses a large catalogue, is skipped with a warning. ``prepared``
    finds or prepares the dataset of an experiment; trained models go to folders in ``out``.

    Returns:
        The MLflow runs by the name of the dataset: the models, then the baselines in the reverse
        order of `BASELINES`.

    Raises:
        InputError: a baseline is unknown, a dataset cannot be prepared, or the tracking store
            cannot be used; or another process runs the suite or one of its runs.
        KeyboardInterrupt: Ctrl-C; finished runs are kept.
    """
    for name in suite.baselines or ():
        if name not in BASELINES:
            known = ", ".join(BASELINES)
            raise InputError(f"suite {suite.name}: baselines: {name!r}: must be one of {known}")
    runs: dict[str, list[str]] = {}
    with sole_use(out / suite.name, "runs the suite"), new_progress() as progress:
        for number, entry in enumerate(suite.datasets, 1):
            protocol = suite.experiment(entry)
            dataset = prepared(protocol)
            steps = list(_steps(suite, entry, protocol, dataset))
            title = f"{suite.name}: {entry.name}, {number} of {len(suite.datasets)} datasets"
            bar = progress.add_task(title, total=len(steps), status="")
            found = []
            for step in progress.track(steps, task_id=bar):
                progress.update(bar, status=step.name)
                found.append(_run(step, dataset, out, progress))
            runs[entry.name] = [run for run in found if run is not None]
            progress.update(bar, status="")
    return runs


def _steps(
    suite: Suite, entry: SuiteEntry, protocol: Experiment, dataset: PreparedDataset
) -> Iterator[_Step]:
    for model in suite.models:
        for seed in suite.seeds:
            experiment = suite.experiment(entry, model, seed)
            with suppress(InputError):  # there is nothing to train on, as the training says too
                experiment = with_enough_epochs(experiment, dataset)
            yield _Step(experiment, None)
    names = baselines_of(protocol, dataset) if suite.baselines is None else suite.baselines
    for name in names[::-1]:
        yield _Step(protocol, name)


def _run(step: _Step, dataset: PreparedDataset, out: Path, progress: Progress) -> str | None:
    """Return the id of the step's run, finished now or before; None if it was refused."""
    experiment, name = step.experiment, step.name
    if step.baseline is None:
        model, settings = experiment.family, flatten(experiment)
    else:
        model, settings = step.baseline, baseline_settings(experiment)
    if (done := finished_run(experiment.tracking, dataset, model, settings)) is not None:
        logger.info("%s: already finished, run %s", name, done[:8])
        return done
    started = time.perf_counter()
    try:
        if step.baseline is None:
            run_id = fit(experiment, dataset, out / name, progress).run_id
        else:
            run_id = fit_baseline(step.baseline, experiment, dataset)
    except (CheckpointError, BusyError):  # not skipped: trained epochs would be lost silently
        raise
    except InputError as error:
        logger.warning("%s: skipped: %s", name, error)
        return None
    # Ctrl-C ended the training early, without an exception
    if finished_run(experiment.tracking, dataset, model, settings) is None:
        raise KeyboardInterrupt
    logger.info("%s: %.0f s, run %s", name, time.perf_counter() - started, run_id[:8])
    return run_id


MODEL = "model"
"""The name of the experiment's own model among the names of baselines."""


class Backtested(NamedTuple):
    """The result of one model or baseline: an MLflow run and ranks for each fold."""

    runs: list[str]
    folds: list[RankTable]
    pooled: RankTable


def backtest(name: str, experiment: Experiment, datasets: Sequence[PreparedDataset]) -> Backtested:
    """Fit `MODEL` or a baseline on each fold separately, and evaluate it on its test part.

    Fold i is called NAME-fold-i and written to runs/NAME-fold-i; it has the settings of its data.

    Raises:
        InputError: a fold has nothing to train on or to evaluate, or the store cannot be used.
    """
    runs = []
    with shown() as view, stage(f"backtest of {name}", len(datasets), view) as line:
        for number, dataset in enumerate(datasets, 1):
            line.say(f"fold {number} of {len(datasets)}")
            update = {"name": f"{experiment.name}-fold-{number}", "data": dataset.config}
            fold = experiment.model_copy(update=update)
            if name == MODEL:
                runs.append(fit(fold, dataset, progress=view).run_id)
            else:
                runs.append(fit_baseline(name, fold, dataset))
            line.advance()
    tables = [run.ranks for run in find_runs(runs, experiment.tracking, "test")]
    pooled = pool_folds(tables, [dataset.user_ids for dataset in datasets])
    return Backtested(runs, tables, pooled)
