"""An MLflow run open for writing: its settings, metrics, tags and files."""

import hashlib
import json
import logging
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.utils.file_utils import local_file_uri_to_path
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID
from mlflow.utils.uri import is_local_uri

from recsys.config.experiment import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, Terminated, one_line, undivided
from recsys.evaluation.tables import Candidates, protocol_tags
from recsys.folders import file_sha256, sync, sync_entries
from recsys.tracking.store import STORE_ERRORS, open_store, refuse_broken_store

logger = logging.getLogger(__name__)

_FINGERPRINT = "config_fingerprint"
"""The tag that is equal for runs that would give the same results."""


class RecordError(InputError):
    """The store has not taken all of a run's record."""


@dataclass
class Tracker:
    """One MLflow run, open for writing; what a store that fails has not taken is sent later."""

    client: MlflowClient
    run_id: str
    uri: str
    logged: frozenset[tuple[str, int]] = frozenset()
    """The metrics, by name and step, of a resumed run: they are not logged twice."""
    waiting: list[Callable[[], object]] = field(default_factory=list)
    """What the store has not taken yet, beside metrics."""
    metrics: list[Metric] = field(default_factory=list)
    reason: str = ""
    """Why it has not, in one line; empty if all is sent."""

    def tag(self, name: str, value: str) -> None:
        self._put(partial(self.client.set_tag, self.run_id, name, value))

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Log the settings that decide the result, by dotted names."""
        params = [Param(name, str(value)[:6000]) for name, value in settings.items()]
        self._put(partial(self.client.log_batch, self.run_id, params=params))

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log the numbers of one step, such as an epoch, counted from 1."""
        now = int(time.time() * 1000)
        self.metrics += [
            Metric(name, value, now, step)
            for name, value in metrics.items()
            if (name, step) not in self.logged
        ]
        if not self.reason:
            self.flush()

    def log_dataset(self, dataset: PreparedDataset) -> None:
        """Log which dataset the run reads, as MLflow shows it."""
        source = json.dumps({"uri": str(dataset.path.absolute())})
        counts = json.dumps(dataset.manifest.counts)
        name, digest = Path(dataset.manifest.origin).stem, dataset.fingerprint[:16]
        entity = Dataset(name, digest, "local", source, profile=counts)
        inputs = [DatasetInput(entity, [InputTag(MLFLOW_DATASET_CONTEXT, "training")])]
        self._put(partial(self.client.log_inputs, self.run_id, inputs))

    def log_path(self, path: Path) -> None:
        """Log a file, or a folder under its own name, as an artifact."""
        self._put(partial(self.client.log_artifact, self.run_id, str(path)))

    def _put(self, write: Callable[[], object]) -> None:
        self.waiting.append(write)
        if not self.reason:
            self.flush()

    def flush(self) -> None:
        """Send all that waits; a warning says the first time that something must wait."""
        failed_before, self.reason = bool(self.reason), ""
        writes, self.waiting = self.waiting, []
        for write in writes:
            if not self._sent(write):
                self.waiting.append(write)
        log = partial(self.client.log_batch, self.run_id, metrics=self.metrics)
        if self.metrics and self._sent(log):
            self.metrics = []
        if self.reason and not failed_before:
            logger.warning("%s; the record is kept, and is sent again at the end", self.reason)

    def _sent(self, write: Callable[[], object]) -> bool:
        try:
            write()
        except STORE_ERRORS as error:
            reason = one_line(error, 300)
            self.reason = f"tracking.uri {self.uri}: cannot be written to: {reason}"
            return False
        return True

    def _sync_files(self) -> None:
        """Sync the artifacts of a store that is a folder; SQLite syncs its file."""
        artifacts = self.client.get_run(self.run_id).info.artifact_uri
        if is_local_uri(artifacts) and (path := Path(local_file_uri_to_path(artifacts))).is_dir():
            sync(path)
            for parent in list(path.parents)[:3]:  # run, experiment, store
                sync_entries(parent)

    def end(self, status: str) -> None:
        """Close the run.

        Raises:
            RecordError: the store has not taken all of a FINISHED run, which is then FAILED.
        """
        self._put(self._sync_files)
        self.flush()
        lost = self.reason
        status = "FAILED" if lost and status == "FINISHED" else status
        self._put(partial(self.client.set_terminated, self.run_id, status))
        self.flush()
        if lost or (status == "FINISHED" and self.reason):
            raise RecordError(f"run {self.run_id}: its record is not whole: {lost or self.reason}")


@contextmanager
def track(
    experiment: Experiment,
    dataset: PreparedDataset,
    model: str,
    settings: Mapping[str, Any],
    candidates: Candidates | None = None,
    resumed: str | None = None,
    parent: str | None = None,
) -> Iterator[Tracker]:
    """Open a run with its settings, the data's fingerprint, the protocol and the commit.

    It ends FINISHED with the block, KILLED by Ctrl-C or a SIGTERM, FAILED by any other exception,
    or if the store has not taken all of it.

    Args:
        experiment: its name, tracking section and protocol.
        dataset: the dataset that the model is fitted to and evaluated on.
        model: the family, e.g. ``target_attention`` or ``popularity``.
        settings: the settings that decide the result, by dotted names.
        candidates: the items that test targets are ranked among; the full catalogue if None.
        resumed: the id of an interrupted run to resume; a new one if the store has lost it.
        parent: the id of the run below which MLflow's pages show this one.

    Raises:
        InputError: the tracking store cannot be reached.
        RecordError: the block has ended, and the store has not taken all of the record.
    """
    tracking = experiment.tracking
    client, experiment_id = open_store(tracking)
    tags = {
        "model": model,
        "dataset": dataset.manifest.origin,
        "dataset_fingerprint": dataset.fingerprint,
        "git_commit": git_commit() or "unknown",
        _FINGERPRINT: config_fingerprint(dataset, model, settings),
        **protocol_tags(dataset, experiment.evaluation, candidates),
        **({} if parent is None else {MLFLOW_PARENT_RUN_ID: parent}),
    }
    tracker = None
    try:
        with undivided():  # a run that is open is closed, whenever a signal comes
            tracker = known = None if resumed is None else _reopen(client, resumed, tracking.uri)
            if tracker is None:
                with refuse_broken_store(tracking.uri):
                    run = client.create_run(experiment_id, run_name=experiment.name, tags=tags)
                tracker = Tracker(client, run.info.run_id, tracking.uri)
        if known is None:
            tracker.log_settings(settings)
            tracker.log_dataset(dataset)
        yield tracker
    except BaseException as error:
        # A signal between the block and this function closes the generator.
        stopped = isinstance(error, KeyboardInterrupt | Terminated | GeneratorExit)
        # The first error counts; a warning has told of the store.
        with suppress(RecordError), undivided():
            if tracker is not None:
                tracker.end("KILLED" if stopped else "FAILED")
        raise
    with undivided():
        tracker.end("FINISHED")


def _reopen(client: MlflowClient, run_id: str, uri: str) -> Tracker | None:
    try:
        run = client.get_run(run_id)
        client.update_run(run_id, status="RUNNING")
        logged = {
            (metric.key, metric.step)
            for name in run.data.metrics
            for metric in client.get_metric_history(run_id, name)
        }
    except MlflowException as error:
        logger.warning("MLflow run %s: cannot be resumed, a new run starts: %s", run_id, error)
        return None
    return Tracker(client, run_id, uri, frozenset(logged))


def finished_run(
    experiment: Experiment, dataset: PreparedDataset, model: str, settings: Mapping[str, Any]
) -> str | None:
    """Return the latest finished run, not ended early by Ctrl-C, that `track` would only repeat."""
    client, experiment_id = open_store(experiment.tracking)
    wanted = f"tags.{_FINGERPRINT} = '{config_fingerprint(dataset, model, settings)}'"
    wanted += f" and attributes.run_name = '{experiment.name}'"
    found = client.search_runs([experiment_id], f"{wanted} and attributes.status = 'FINISHED'")
    return next((run.info.run_id for run in found if "interrupted" not in run.data.tags), None)


def config_fingerprint(dataset: PreparedDataset, model: str, settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of `decisive_facts`."""
    content = json.dumps(decisive_facts(dataset, model, settings), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def decisive_facts(
    dataset: PreparedDataset, model: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that decides the result of a run except the code, by dotted names."""
    # Fingerprints of the dataset and of the model that a training starts from replace the settings
    # of their making. How often a training is checkpointed does not change its result.
    ignored = ("name", "data.", "tracking.", "start.bundle", "training.checkpoint_minutes")
    facts = {key: value for key, value in settings.items() if not key.startswith(ignored)}
    file = Path(settings.get("evaluation.candidates.file") or "")
    content = file_sha256(file) if file.is_file() else None  # the name does not identify it
    return {"dataset": dataset.fingerprint, "model": model, "candidates": content, **facts}


def git_commit() -> str | None:
    """Return the commit of this checkout, with ``-dirty`` if changed; None outside a checkout."""
    here = Path(__file__)
    git = partial(subprocess.check_output, cwd=here.parent, text=True, stderr=subprocess.DEVNULL)
    try:
        git(["git", "ls-files", "--error-unmatch", here.name])  # installed inside another one?
        changed = git(["git", "status", "--porcelain", "-uno"])
        return git(["git", "rev-parse", "HEAD"]).strip() + "-dirty" * bool(changed.strip())
    except (OSError, subprocess.CalledProcessError):
        return None
