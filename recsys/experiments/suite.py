"""Suites: every model and baseline on every dataset; an interrupted suite resumes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment, Suite, SuiteEntry, flatten
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.experiments.baselines import baseline_settings, baselines_of, fit_baseline
from recsys.experiments.fit import fit
from recsys.folders.locks import BusyError, sole_use
from recsys.progress import new_progress
from recsys.tracking.tracker import finished_run
from recsys.training.checkpoints import CheckpointError
from recsys.training.refit import with_enough_epochs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    """One run of a suite."""

    name: str
    finished: Callable[[], str | None]
    """Returns the id of a finished run in the tracking store, if there is one."""
    run: Callable[[Progress], str]
    """Runs it and returns its id."""


def run_suite(
    suite: Suite,
    prepared: Callable[[Experiment], PreparedDataset],
    out: Path = Path("runs"),
) -> dict[str, list[str]]:
    """Run all runs of a suite that are not finished; an interrupted suite resumes.

    A run is finished if the tracking store has one of the same data, model and settings. A run that
    refuses its data, as EASE refuses a large catalogue, is skipped with a warning.

    Args:
        suite: the suite to run.
        prepared: finds or prepares the dataset of an experiment.
        out: folder for the folders of the trained models.

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
            protocol = suite.protocol(entry)
            steps = list(_steps(suite, entry, protocol, prepared(protocol), out))
            title = f"{suite.name}: {entry.name}, {number} of {len(suite.datasets)} datasets"
            bar = progress.add_task(title, total=len(steps), status="")
            found = []
            for step in progress.track(steps, task_id=bar):
                progress.update(bar, status=step.name)
                found.append(_run(step, progress))
            runs[entry.name] = [run for run in found if run is not None]
            progress.update(bar, status="")
    return runs


def _steps(
    suite: Suite, entry: SuiteEntry, protocol: Experiment, dataset: PreparedDataset, out: Path
) -> Iterator[_Step]:
    for model in suite.models:
        for seed in suite.seeds:
            yield _training(suite.experiment(entry, model, seed), dataset, out)
    names = baselines_of(protocol, dataset) if suite.baselines is None else suite.baselines
    for name in names[::-1]:
        yield _baseline(name, protocol, dataset)


def _training(experiment: Experiment, dataset: PreparedDataset, out: Path) -> _Step:
    with suppress(InputError):  # there is nothing to train on, as the training says too
        experiment = with_enough_epochs(experiment, dataset)
    settings = flatten(experiment)
    return _Step(
        experiment.name,
        lambda: finished_run(experiment.tracking, dataset, experiment.family, settings),
        lambda progress: fit(experiment, dataset, out / experiment.name, progress).run_id,
    )


def _baseline(name: str, experiment: Experiment, dataset: PreparedDataset) -> _Step:
    settings = baseline_settings(experiment)
    return _Step(
        f"{experiment.name}-{name}",
        lambda: finished_run(experiment.tracking, dataset, name, settings),
        lambda _: fit_baseline(name, experiment, dataset),
    )


def _run(step: _Step, progress: Progress) -> str | None:
    """Return the id of the step's run, finished now or before; None if it was refused."""
    if (done := step.finished()) is not None:
        logger.info("%s: already finished, run %s", step.name, done[:8])
        return done
    started = time.perf_counter()
    try:
        run_id = step.run(progress)
    except (CheckpointError, BusyError):  # not skipped: trained epochs would be lost silently
        raise
    except InputError as error:
        logger.warning("%s: skipped: %s", step.name, error)
        return None
    if step.finished() is None:  # Ctrl-C ended the training early, without an exception
        raise KeyboardInterrupt
    logger.info("%s: %.0f s, run %s", step.name, time.perf_counter() - started, run_id[:8])
    return run_id
