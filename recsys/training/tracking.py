"""MLflow: where a run's settings, figures and files go. The only training-side import of mlflow."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from recsys.config import Experiment, TrackingConfig, flatten
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.metrics import Interval


@dataclass(frozen=True)
class Tracker:
    """One MLflow run, open for writing. No global state: several may be open at once."""

    client: MlflowClient
    run_id: str

    def log_figures(self, figures: Mapping[str, float], step: int = 0) -> None:
        """Numbers of one step."""
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in figures.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def log_intervals(self, prefix: str, figures: Mapping[str, Interval]) -> None:
        """Means as ``prefix/name``, their 95% intervals as ``prefix/name_low`` and ``_high``."""
        flat: dict[str, float] = {}
        for name, figure in figures.items():
            flat[f"{prefix}/{name}"] = figure.mean
            flat[f"{prefix}/{name}_low"] = figure.low
            flat[f"{prefix}/{name}_high"] = figure.high
        self.log_figures(flat)

    def log_path(self, path: Path) -> None:
        """A file, or a folder under its own name, as artifact."""
        if path.is_dir():
            self.client.log_artifacts(self.run_id, str(path), path.name)
        else:
            self.client.log_artifact(self.run_id, str(path))


@contextmanager
def track(experiment: Experiment, dataset: PreparedDataset, model: str) -> Iterator[Tracker]:
    """Open a run with the flattened config, the data's fingerprint, the protocol and the commit.

    The run ends FINISHED with the block, KILLED by Ctrl-C, FAILED by any other exception.

    Args:
        experiment: the settings; its tracking section says where the run goes.
        dataset: what is fitted and evaluated on.
        model: what was fitted, e.g. ``target_attention`` or ``popularity``.

    Raises:
        InputError: the tracking store cannot be reached.
    """
    client, experiment_id = _open_store(experiment.tracking)
    protocol = {
        "split": experiment.data.split,
        "seen": experiment.evaluation.seen,
        "candidates": "catalogue",
        "ties": "against_target",
        "request_time": "unknown",
    }
    tags = {
        "model": model,
        "dataset": dataset.manifest.origin,
        "dataset_fingerprint": dataset.fingerprint,
        "git_commit": git_commit() or "unknown",
        **{f"protocol.{name}": value for name, value in protocol.items()},
    }
    run = client.create_run(experiment_id, run_name=experiment.name, tags=tags)
    tracker = Tracker(client, run.info.run_id)
    params = [Param(name, str(value)[:500]) for name, value in flatten(experiment).items()]
    client.log_batch(tracker.run_id, params=params)
    try:
        yield tracker
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        client.set_terminated(tracker.run_id, status)
        raise
    client.set_terminated(tracker.run_id, "FINISHED")


def git_commit() -> str | None:
    """Commit of the checkout this library runs from, ``-dirty`` if changed; None outside one."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _open_store(config: TrackingConfig) -> tuple[MlflowClient, str]:
    """The client and the id of the experiment, made if new."""
    # The first use of a SQLite store prints some forty lines of schema migrations.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    location = None
    try:
        if config.database is not None:
            config.database.parent.mkdir(parents=True, exist_ok=True)
            location = (config.database.parent / "mlartifacts").as_uri()
        client = MlflowClient(config.absolute_uri)
        known = client.get_experiment_by_name(config.experiment)
        if known is not None:
            return client, known.experiment_id
        return client, client.create_experiment(config.experiment, artifact_location=location)
    except (MlflowException, OSError) as error:
        raise InputError(f"tracking.uri {config.uri}: cannot be used: {error}") from error
