"""Runs of an MLflow store, found by id or name, with the tables of ranks and lists they keep."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from pydantic import TypeAdapter

from recsys.config import WITH_COUNTS, TrackingConfig
from recsys.data.audit import AUDIT, Finding
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.tables.next_list import NextListTable
from recsys.evaluation.tables.rank import RankTable

__all__ = [
    "EvaluatedRun",
    "Run",
    "audit_of",
    "differing_tags",
    "find_runs",
    "is_of_lists",
    "keep_report",
    "learning_curves",
    "run_label",
    "store_lock",
]

logger = logging.getLogger(__name__)

_LOCK_SECONDS = 120


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """A run, and the tables of it that the metrics are computed from."""

    run: Run
    ranks: RankTable
    lists: NextListTable | None
    alone: bool = False
    """Are these the ranks by its model without the counts that stand beside it?"""

    @property
    def name(self) -> str:
        """Of the run."""
        name: str = self.run.info.run_name
        return f"{name}, model alone" if self.alone else name

    @property
    def model(self) -> str:
        """The family of what made the ranks."""
        family: str = self.run.data.tags.get("model", "unknown")
        return family.removesuffix(WITH_COUNTS) if self.alone else family

    def table(self, metric: str) -> RankTable | NextListTable:
        """The table that a metric is of.

        Raises:
            InputError: it is one of lists, and the run has none.
        """
        if not is_of_lists(metric):
            return self.ranks
        if self.lists is None:
            raise InputError(
                f"run {run_label(self.run)}: has no lists of next purchases, "
                "hence no metrics next_..."
            )
        return self.lists

    def shares_targets(self, other: EvaluatedRun) -> bool:
        """Were both asked for the same targets of the same dataset, under whatever protocol?"""
        mine, theirs = (one.run.data.tags.get("dataset_fingerprint") for one in (self, other))
        columns = ["user", "target"]
        return mine == theirs and self.ranks.frame[columns].equals(other.ranks.frame[columns])


def is_of_lists(metric: str) -> bool:
    """Is it a figure of lists of next purchases, and not one of ranks?"""
    return metric.startswith("next_")


def find_runs(
    runs: Sequence[str],
    tracking: TrackingConfig,
    part: Part,
    listed: bool,
    across_protocols: bool = False,
) -> list[EvaluatedRun]:
    """The runs asked for, in that order, with their rank tables; with their lists if asked to.

    Behind a run whose model has counts beside it, unless it has lists: the model alone.
    """
    database = tracking.database
    if database is not None and not database.is_file():  # MLflow would make an empty one
        raise InputError(f"tracking.uri {tracking.uri}: {database} does not exist")
    try:
        with store_lock(tracking):
            client = MlflowClient(tracking.absolute_uri)
        there = _runs_of(client, tracking)
        newest = {run.info.run_name: run for run in there if run.info.status == "FINISHED"}
        chosen = [_find(wanted, there, newest) for wanted in runs]
        if not runs:
            chosen = [*newest.values()] if across_protocols else comparable_runs(newest.values())
        if not chosen:
            raise InputError(f"experiment {tracking.experiment!r}: no run has finished")
        with _no_progress_bar():
            return [one for run in chosen for one in _download(client, run, part, listed)]
    except (MlflowException, OSError) as error:
        raise InputError(f"tracking.uri {tracking.uri}: cannot be used: {error}") from error


def store_lock(tracking: TrackingConfig) -> AbstractContextManager[object]:
    """For one process at a time to open the store: MLflow lets two make the tables of a new one.

    Beside a SQLite file stays an empty one, FILE.lock.
    """
    if tracking.database is None:
        return nullcontext()
    return FileLock(f"{tracking.database}.lock", timeout=_LOCK_SECONDS)


def learning_curves(
    runs: Sequence[EvaluatedRun], tracking: TrackingConfig
) -> dict[str, dict[int, float]]:
    """NDCG@10 on the validation targets by epoch, of the runs that logged it, by their ids."""
    client = MlflowClient(tracking.absolute_uri)
    curves = {}
    for run_id in dict.fromkeys(one.run.info.run_id for one in runs):
        points = client.get_metric_history(run_id, "epoch/valid_ndcg_at_10")
        if curve := {point.step: point.value for point in points}:
            curves[run_id] = curve
    return curves


def audit_of(run: EvaluatedRun, tracking: TrackingConfig) -> list[Finding]:
    """What the audit of the run's dataset found; nothing of runs that kept no audit."""
    client = MlflowClient(tracking.absolute_uri)
    run_id = run.run.info.run_id
    if AUDIT not in {artifact.path for artifact in client.list_artifacts(run_id)}:
        return []
    with tempfile.TemporaryDirectory() as folder, _no_progress_bar():
        path = client.download_artifacts(run_id, AUDIT, folder)
        return TypeAdapter(list[Finding]).validate_json(Path(path).read_bytes())


def keep_report(folder: Path, run: EvaluatedRun, tracking: TrackingConfig) -> None:
    """Log the files of a comparison report with a run, as its artifacts under ``comparison``."""
    client = MlflowClient(tracking.absolute_uri)
    try:
        with _no_progress_bar():
            client.log_artifacts(run.run.info.run_id, str(folder), "comparison")
    except (MlflowException, OSError) as error:
        raise InputError(
            f"tracking.uri {tracking.uri}: cannot keep {folder} with run {run_label(run.run)}: "
            f"{error}"
        ) from error


def _runs_of(client: MlflowClient, tracking: TrackingConfig) -> list[Run]:
    """Every run of the experiment, the oldest first (of more than 50,000, the newest so many)."""
    experiment = client.get_experiment_by_name(tracking.experiment)
    if experiment is None:
        names = ", ".join(sorted(found.name for found in client.search_experiments()))
        raise InputError(
            f"tracking.experiment {tracking.experiment!r}: not in {tracking.uri}, which has {names}"
        )
    newest_first = ["attributes.start_time DESC"]
    return client.search_runs([experiment.experiment_id], "", 1, 50_000, newest_first)[::-1]


def comparable_runs(runs: Collection[Run]) -> list[Run]:
    """Those that can be compared with the newest of them."""
    if not runs:
        return []
    newest = max(runs, key=lambda run: run.info.start_time)
    alike = [run for run in runs if not differing_tags(newest, run)]
    if len(alike) < len(runs):
        logger.info(
            "left out %d runs of other data or another protocol than %s, the newest",
            len(runs) - len(alike),
            run_label(newest),
        )
    return alike


def differing_tags(a: Run, b: Run) -> list[str]:
    """Those of data and protocol that the runs do not share.

    The fingerprint of the protocol only sums the others up, and runs of old lack it.
    """
    ours, theirs = a.data.tags, b.data.tags
    protocol = sorted(
        tag
        for tag in ours.keys() | theirs.keys()
        if tag.startswith("protocol.") and tag != "protocol.fingerprint"
    )
    return [t for t in ("dataset_fingerprint", *protocol) if ours.get(t) != theirs.get(t)]


def _find(wanted: str, there: Sequence[Run], newest: Mapping[str, Run]) -> Run:
    """A run by its id, the newest finished by its name, or a run by the beginning of its id."""
    by_id = [run for run in there if run.info.run_id.startswith(wanted)]
    if wanted in newest and wanted not in (run.info.run_id for run in by_id):
        return newest[wanted]
    # Of four letters or more: a mistyped name must not pass for the one id that begins with "e".
    if not by_id or len(wanted) < 4:
        raise InputError(
            f"run {wanted!r}: neither an id nor the name of a finished run; the newest there: "
            + (", ".join(map(run_label, list(newest.values())[:-11:-1])) or "none")
        )
    if len(by_id) > 1:
        ids = ", ".join(run.info.run_id for run in by_id)
        raise InputError(f"run {wanted!r}: the ids of several runs begin so: {ids}")
    return by_id[0]


def _download(client: MlflowClient, run: Run, part: Part, listed: bool) -> list[EvaluatedRun]:
    there = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    name, lists = f"ranks_{part}.parquet", f"lists_{part}.parquet"
    alone = f"ranks_{part}_model_alone.parquet"
    if name not in there:
        raise InputError(
            f"run {run_label(run)}: has no rank table {name} (it is {run.info.status})"
        )
    with tempfile.TemporaryDirectory() as folder:
        fetch = partial(client.download_artifacts, run.info.run_id, dst_path=folder)
        try:
            ranks = RankTable.load(fetch(name))
            if listed and lists in there:
                return [EvaluatedRun(run, ranks, NextListTable.load(fetch(lists)))]
            found = [EvaluatedRun(run, ranks, None)]
            if alone in there:
                ranks = RankTable.load(fetch(alone))
                found.append(EvaluatedRun(run, ranks, None, alone=True))
            return found
        except InputError as error:
            raise InputError(f"run {run_label(run)}: {error}") from error


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """MLflow would draw one per file; it listens to the environment alone."""
    variable = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
    before = os.environ.get(variable)
    os.environ[variable] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def run_label(run: Run) -> str:
    """Its name and the beginning of its id, as messages name it."""
    return f"{run.info.run_name} ({run.info.run_id[:8]})"
