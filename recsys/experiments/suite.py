"""Every model and baseline of a suite on every dataset, from where it was left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment, Suite, SuiteEntry, flatten
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.experiments.baseline import baseline_settings, baselines_of, fit_baseline
from recsys.experiments.fit import fit
from recsys.tracking.tracker import finished_run
from recsys.training.checkpoint import CheckpointError
from recsys.training.progress import training_progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    """One run of a suite."""

    name: str
    finished: Callable[[], str | None]
    """Its id in the tracking store, if it came to its end."""
    run: Callable[[Progress], str]


def run_suite(
    suite: Suite,
    prepared: Callable[[Experiment], PreparedDataset],
    out: Path = Path("runs"),
) -> dict[str, list[str]]:
    """Run what has not been run to its end; a suite that was cut short goes on where it was.

    A run is taken as done if the tracking store has a finished one of the same data, model and
    settings. One that refuses its data, as EASE does a large catalogue, is left out with a warning.

    Args:
        suite: what is to be run.
        prepared: finds or prepares the dataset of an experiment.
        out: folder in which each trained model has one.

    Returns:
        By the name of each dataset the MLflow runs: the models, then the baselines, the last of
        `BASELINES` first.

    Raises:
        InputError: a baseline has no such name, a dataset cannot be prepared, or the tracking store
            cannot be used.
        KeyboardInterrupt: by Ctrl-C; what is finished is kept.
    """
    for name in suite.baselines or ():
        if name not in BASELINES:
            known = ", ".join(BASELINES)
            raise InputError(f"suite {suite.name}: baselines: {name!r}: must be one of {known}")
    runs: dict[str, list[str]] = {}
    with training_progress() as progress:
        for number, entry in enumerate(suite.datasets, 1):
            protocol = suite.protocol(entry)
            steps = list(_steps(suite, entry, protocol, prepared(protocol), out))
            title = f"{suite.name}: {entry.name}, {number} of {len(suite.datasets)} datasets"
            bar = progress.add_task(title, total=len(steps), figures="")
            found = []
            for step in progress.track(steps, task_id=bar):
                progress.update(bar, figures=step.name)
                found.append(_run(step, progress))
            runs[entry.name] = [run for run in found if run is not None]
            progress.update(bar, figures="")
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
    """The id of the step's run, done now or before; None if it refused."""
    if (done := step.finished()) is not None:
        logger.info("%s: done before, run %s", step.name, done[:8])
        return done
    started = time.perf_counter()
    try:
        run_id = step.run(progress)
    except CheckpointError:  # not left out: what was trained would be lost without a word
        raise
    except InputError as error:
        logger.warning("%s: left out: %s", step.name, error)
        return None
    if step.finished() is None:  # Ctrl-C makes a training end early, and well
        raise KeyboardInterrupt
    logger.info("%s: %.0f s, run %s", step.name, time.perf_counter() - started, run_id[:8])
    return run_id
