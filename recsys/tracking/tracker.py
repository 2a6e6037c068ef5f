"""An MLflow run open for writing: its settings, metrics, tags and files."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_PARENT_RUN_ID

from recsys.config import Experiment, TrackingConfig
from recsys.data.audit import AUDIT, Finding, audit
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, Terminated
from recsys.evaluation.candidates import Candidates, protocol_tags
from recsys.evaluation.metrics import Interval
from recsys.folders.atomic import sync, sync_entries
from recsys.folders.digests import file_sha256
from recsys.interrupts import undivided
from recsys.tracking.logged_model import local_folder, log_bundle
from recsys.tracking.mlflow_model import ModelFacts
from recsys.tracking.outbox import Outbox
from recsys.tracking.store import open_store, refuse_broken_store

logger = logging.getLogger(__name__)

_FINGERPRINT = "config_fingerprint"
"""The tag that is equal for runs that would give the same results."""


class RecordError(InputError):
    """The store has not taken all of a run's record."""


@dataclass(frozen=True)
class Tracker:
    """One MLflow run, open for writing. There is no global state: several may be open at once.

    A store that fails meanwhile does not end the training: what it has not taken waits.
    """

    client: MlflowClient
    run_id: str
    outbox: Outbox
    logged: frozenset[tuple[str, int]] = frozenset()
    """The metrics, by name and step, of a run that is resumed: they are not logged twice."""

    def tag(self, name: str, value: str) -> None:
        """Set a tag of the run."""
        self.outbox.put(partial(self.client.set_tag, self.run_id, name, value))

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Log the settings that decide the result, by dotted names."""
        self.outbox.put(partial(self.client.log_batch, self.run_id, params=_params(settings)))

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log the numbers of one step."""
        now = int(time.time() * 1000)
        unlogged = [
            Metric(name, value, now, step)
            for name, value in metrics.items()
            if (name, step) not in self.logged
        ]
        self.outbox.put(partial(self.client.log_batch, self.run_id, metrics=unlogged))

    def log_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Log the numbers of an epoch, counted from 1."""
        self.log_metrics(metrics, epoch)

    def log_intervals(self, prefix: str, intervals: Mapping[str, Interval]) -> None:
        """Log means as ``prefix/name`` and 95% intervals as ``prefix/name_low`` and ``_high``."""
        flat: dict[str, float] = {}
        for name, interval in intervals.items():
            flat[f"{prefix}/{name}"] = interval.mean
            flat[f"{prefix}/{name}_low"] = interval.low
            flat[f"{prefix}/{name}_high"] = interval.high
        self.log_metrics(flat)

    def log_dataset(self, dataset: PreparedDataset) -> None:
        """Log which dataset the run reads: MLflow shows its name, digest, source and counts."""
        source = json.dumps({"uri": str(dataset.path.absolute())})
        counts = json.dumps(dataset.manifest.counts)
        name, digest = Path(dataset.manifest.origin).stem, dataset.fingerprint[:16]
        entity = Dataset(name, digest, "local", source, profile=counts)
        context = InputTag(MLFLOW_DATASET_CONTEXT, "training")
        inputs = [DatasetInput(entity, [context])]
        self.outbox.put(partial(self.client.log_inputs, self.run_id, inputs))

    def log_audit(self, findings: Sequence[Finding]) -> None:
        """Log the findings of the audit of the dataset, as the artifact audit.json."""
        text = json.dumps([asdict(finding) for finding in findings], indent=2)
        self.outbox.put(partial(self.client.log_text, self.run_id, text, AUDIT))

    def log_path(self, path: Path) -> None:
        """Log a file, or a folder under its own name, as an artifact."""
        if path.is_dir():
            log = partial(self.client.log_artifacts, self.run_id, str(path), path.name)
        else:
            log = partial(self.client.log_artifact, self.run_id, str(path))
        self.outbox.put(log)

    def log_model(self, bundle: Path, facts: ModelFacts) -> None:
        """Log a bundle as the MLflow model of the run; see `log_bundle`."""
        self.outbox.put(partial(self._log_bundle, bundle, facts))

    def _log_bundle(self, bundle: Path, facts: ModelFacts) -> None:
        experiment_id = self.client.get_run(self.run_id).info.experiment_id
        log_bundle(self.client, experiment_id, bundle, facts, self.run_id)

    def flush(self) -> None:
        """Write all that waits, and sync the artifacts to the disk."""
        self.outbox.put(self._sync_files)
        self.outbox.flush()

    def _sync_files(self) -> None:
        """Have the disk store the artifacts of the run, if its store is a folder of this machine.

        SQLite syncs its own file.
        """
        run = self.client.get_run(self.run_id)
        outputs = [] if run.outputs is None else run.outputs.model_outputs
        models = [self.client.get_logged_model(output.model_id) for output in outputs]
        for place in (run.info.artifact_uri, *(model.artifact_location for model in models)):
            folder = local_folder(place)
            if folder is not None and folder.is_dir():
                sync(folder)
                for parent in list(folder.parents)[:3]:  # run or model, experiment, store
                    sync_entries(parent)

    def end(self, status: str) -> None:
        """Close the run.

        Raises:
            RecordError: the store has not taken all of a FINISHED run, which is then FAILED.
        """
        self.outbox.flush()
        reason = self.outbox.reason
        if reason and status == "FINISHED":
            status = "FAILED"
        self.outbox.put(partial(self.client.set_terminated, self.run_id, status))
        self.outbox.flush()
        if reason or (status == "FINISHED" and self.outbox.reason):
            reason = reason or self.outbox.reason
            raise RecordError(f"run {self.run_id}: its record is not whole: {reason}")


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

    The run ends FINISHED with the block, KILLED by Ctrl-C or a SIGTERM, FAILED by any other
    exception, or if the store has not taken all of it.

    Args:
        experiment: its name, tracking section and protocol.
        dataset: the dataset that the model is fitted to and evaluated on.
        model: the family, e.g. ``target_attention`` or ``popularity``.
        settings: the settings that decide the result, by dotted names.
        candidates: the items that test targets are ranked among. If None, the full catalogue.
        resumed: the id of an interrupted run to resume; a new one if the store has lost it.
        parent: the id of the run below which MLflow's pages show this one; none if None.

    Raises:
        InputError: the tracking store cannot be reached.
        RecordError: the block has ended, and the store has not taken all of the record.
    """
    tracking = experiment.tracking
    client, experiment_id = open_store(tracking)
    outbox = Outbox(tracking.uri)
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
            tracker = known = None if resumed is None else _reopen(client, resumed, outbox)
            if tracker is None:
                with refuse_broken_store(tracking.uri):
                    run = client.create_run(experiment_id, run_name=experiment.name, tags=tags)
                tracker = Tracker(client, run.info.run_id, outbox)
        if known is None:
            tracker.log_settings(settings)
            tracker.log_dataset(dataset)
            tracker.log_audit(audit(dataset, experiment.evaluation.seen))
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


def _reopen(client: MlflowClient, run_id: str, outbox: Outbox) -> Tracker | None:
    """Resume an interrupted run; None if the store does not have it."""
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
    return Tracker(client, run_id, outbox, frozenset(logged))


def finished_run(
    tracking: TrackingConfig, dataset: PreparedDataset, model: str, settings: Mapping[str, Any]
) -> str | None:
    """Return the latest finished run that `track` would only repeat; None if there is none.

    It has the same data, model and settings under any name, and was not ended early by Ctrl-C.

    Raises:
        InputError: the tracking store cannot be reached.
    """
    client, experiment_id = open_store(tracking)
    wanted = f"tags.{_FINGERPRINT} = '{config_fingerprint(dataset, model, settings)}'"
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
    # The fingerprint of the dataset replaces the settings of its preparation.
    # The digest of the model that a training starts from replaces its folder.
    # How often a training is checkpointed does not change its result.
    ignored = ("name", "data.", "tracking.", "start.bundle", "training.checkpoint_minutes")
    facts = {key: value for key, value in settings.items() if not key.startswith(ignored)}
    file = Path(settings.get("evaluation.candidates.file") or "")
    content = file_sha256(file) if file.is_file() else None  # the name does not identify it
    return {"dataset": dataset.fingerprint, "model": model, "candidates": content, **facts}


def _params(settings: Mapping[str, Any]) -> list[Param]:
    return [Param(name, str(value)[:500]) for name, value in settings.items()]


def git_commit() -> str | None:
    """Return the commit of this checkout, with ``-dirty`` if changed; None outside a checkout."""
    here = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(here.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # installed inside another repository?
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
