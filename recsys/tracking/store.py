"""The MLflow store: opened, its errors in one line; its runs, with the tables that they saved."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils as databases
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.exc import SQLAlchemyError

from recsys.config.experiment import WITH_COUNTS, TrackingConfig
from recsys.data.prepared import Part
from recsys.errors import InputError, one_line
from recsys.evaluation.metrics import Source, source_of
from recsys.evaluation.tables import NextListTable, RankTable
from recsys.folders import new_file, sole_use

logger = logging.getLogger(__name__)

_KIND = ("mlflow.experimentKind", "custom_model_development")
"""The tag by which MLflow 3 shows an experiment's runs instead of its traces."""
STORE_ERRORS = (MlflowException, SQLAlchemyError, OSError)
"""What MLflow raises where its store fails."""

databases.MAX_RETRY_COUNT = 3  # ten take two minutes where no database answers


@contextmanager
def refuse_broken_store(uri: str) -> Iterator[None]:
    """Turn any error of the store within the block into an `InputError` of one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"tracking.uri {uri}: needs the Python package {error.name}, which is not installed"
        ) from error
    except STORE_ERRORS as error:
        full = "database or disk is full" in str(error)  # SQLite's words
        reason = "the disk is full" if full else one_line(error, 400)
        raise InputError(f"tracking.uri {uri}: cannot be used: {reason}") from error


@contextmanager
def existing_store(tracking: TrackingConfig) -> Iterator[MlflowClient]:
    """Open a store to read it; that it is not there, and its errors, are one line."""
    database = tracking.database
    if database is not None and not database.is_file():  # MLflow would make an empty one
        raise InputError(f"tracking.uri {tracking.uri}: {database} does not exist")
    with refuse_broken_store(tracking.uri):
        yield MlflowClient(tracking.absolute_uri)


def open_store(config: TrackingConfig) -> tuple[MlflowClient, str]:
    """Return the client and the id of the experiment, which is created if new.

    Raises:
        InputError: the store cannot be reached or written.
    """
    # The first use of a SQLite store prints some forty lines of schema migrations.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    location, database = None, config.database
    # One process at a time makes the tables of a new store, which takes less than twenty seconds.
    alone = nullcontext() if database is None else sole_use(database, "opens it", 20)
    with refuse_broken_store(config.uri), alone:
        if database is not None:
            location = (database.parent / "mlartifacts").as_uri()
            if not (database.exists() and database.stat().st_size):
                # MLflow makes tables in many steps, and cannot go on where a kill ended them.
                with new_file(database) as whole:
                    write_tables(whole)
        client = MlflowClient(config.absolute_uri)
        known = client.get_experiment_by_name(config.experiment)
        if known is None:
            tags = dict([_KIND])
            return client, client.create_experiment(config.experiment, location, tags)
        # A store that cannot be written is found out before hours of training.
        client.set_experiment_tag(known.experiment_id, *_KIND)
        return client, known.experiment_id


def write_tables(file: Path) -> None:
    """Write a new SQLite store without runs."""
    SqlAlchemyStore(f"sqlite:///{file}", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()


def mlflow_link(tracking: TrackingConfig, run_id: str | None = None) -> str:
    """Return a command, if needed, and a link that open the runs of an experiment, or one run."""
    is_server = tracking.uri.startswith(("http://", "https://"))
    server = tracking.uri.rstrip("/") if is_server else "http://127.0.0.1:5000"
    try:
        client = MlflowClient(tracking.absolute_uri)
        experiment = client.get_experiment_by_name(tracking.experiment)
    except MlflowException:  # the run was lost with its store
        experiment = None
    page = "" if experiment is None else f"/{experiment.experiment_id}/runs"
    page += f"/{run_id}" if page and run_id else ""
    # MLflow 3.17's pages ignore the tag and open any experiment as one of traces, without this.
    link = f"{server}/#/experiments{page}?workflowType=machine_learning"
    command = "" if is_server else f"mlflow ui --backend-store-uri {tracking.uri}\n"
    return without_password(command + link)


def without_password(text: str) -> str:
    """Return a text without the users and passwords in its addresses.

    >>> without_password("recsys run log.csv --uri postgresql://me:secret@host/runs")
    'recsys run log.csv --uri postgresql://***@host/runs'
    """
    return re.sub(r"//[^@/\s]+@", "//***@", text)


# --- Runs, by id or name --------------------------------------------------------------------------

TARGET = ["user", "history_length", "target"]
"""The columns of a rank table that say which target it is."""


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """A run with the tables that its metrics are computed from."""

    run: Run
    ranks: RankTable
    lists: NextListTable | None = None
    """Lists of next purchases; None if there are none, or they were not fetched."""
    model_alone: bool = False
    """Are these the ranks of its model without the count ensemble?"""

    @property
    def name(self) -> str:
        name: str = self.run.info.run_name
        return f"{name}, model alone" if self.model_alone else name

    @property
    def model(self) -> str:
        family: str = self.run.data.tags.get("model", "unknown")
        return family.removesuffix(WITH_COUNTS) if self.model_alone else family

    def table(self, metric: str) -> RankTable | NextListTable:
        """Return the table that has a value of the metric for every user."""
        if source_of(metric) == "ranks":
            return self.ranks
        if self.lists is None:
            raise InputError(f"run {run_label(self.run)}: has no lists of next purchases")
        return self.lists

    def value(self, metric: str) -> float:
        """Return a metric of all users, or raise InputError: the run does not have it."""
        if source_of(metric) == "logged":
            logged: dict[str, float] = self.run.data.metrics
            name = f"{self.ranks.protocol.part}/{metric}"
            if name not in logged:
                raise InputError(f"run {run_label(self.run)}: did not log {name}")
            return logged[name]
        return float(self.table(metric).values(metric).mean())

    def among(self, targets: pl.DataFrame) -> EvaluatedRun:
        """Return the run on the given targets alone; see `TARGET`."""

        def kept(frame: pl.DataFrame, on: list[str]) -> pl.DataFrame:
            return frame.join(targets, on=on, how="semi", maintain_order="left")

        ranks = replace(self.ranks, frame=kept(self.ranks.frame, TARGET))
        lists = self.lists and replace(self.lists, frame=kept(self.lists.frame, ["user"]))
        return replace(self, ranks=ranks, lists=lists)


def run_label(run: Run) -> str:
    """Return the name of a run and the beginning of its id, as messages show it."""
    return f"{run.info.run_name} ({run.info.run_id[:8]})"


def find_runs(
    runs: Sequence[str], tracking: TrackingConfig, part: Part, sources: Collection[Source] = ()
) -> list[EvaluatedRun]:
    """Find runs by id or name, and fetch their rank tables and the other sources that they have.

    A model with a count ensemble is followed by the same model alone, if ranks are all there is to
    compare. If no run is named, they are the latest finished ones of every name that can be
    compared with the latest of all.
    """
    with existing_store(tracking) as client:
        there, latest = _runs_of(client, tracking)
        if not runs and not latest:
            raise InputError(f"experiment {tracking.experiment!r}: no run has finished")
        chosen = [_find(wanted, there, latest) for wanted in runs] or _comparable(latest.values())
        return [fetched for run in chosen for fetched in _download(client, run, part, sources)]


def find_run(wanted: str, tracking: TrackingConfig) -> str:
    """Return the id of a run, by its id, the beginning of it, or its name if it has finished."""
    with existing_store(tracking) as client:
        run_id: str = _find(wanted, *_runs_of(client, tracking)).info.run_id
    return run_id


def log_report(folder: Path, run: EvaluatedRun, tracking: TrackingConfig) -> None:
    """Log the files of a comparison report as artifacts of a run, in the folder ``comparison``."""
    with refuse_broken_store(tracking.uri):
        client = MlflowClient(tracking.absolute_uri)
        client.log_artifacts(run.run.info.run_id, str(folder), "comparison")


def _runs_of(client: MlflowClient, tracking: TrackingConfig) -> tuple[list[Run], dict[str, Run]]:
    """Return the latest 50,000 runs, the oldest first, and the latest finished one of each name."""
    experiment = client.get_experiment_by_name(tracking.experiment)
    if experiment is None:
        raise InputError(f"tracking.experiment {tracking.experiment!r}: not in {tracking.uri}")
    latest_first = ["attributes.start_time DESC"]
    runs = client.search_runs([experiment.experiment_id], "", 1, 50_000, latest_first)[::-1]
    return runs, {run.info.run_name: run for run in runs if run.info.status == "FINISHED"}


def _comparable(runs: Collection[Run]) -> list[Run]:
    latest = max(runs, key=lambda run: run.info.start_time)
    if others := [run.info.run_name for run in runs if differing_tags(latest, run)]:
        label = run_label(latest)
        logger.info("left out, of other data or protocol than %s: %s", label, ", ".join(others))
    return [run for run in runs if not differing_tags(latest, run)]


def differing_tags(a: Run, b: Run) -> list[str]:
    """Return the tags of data and protocol in which two runs differ."""
    ours, theirs = a.data.tags, b.data.tags
    names = {tag for tag in ours.keys() | theirs.keys() if tag.startswith("protocol.")}
    return [t for t in ("dataset_fingerprint", *sorted(names)) if ours.get(t) != theirs.get(t)]


def _find(wanted: str, there: Sequence[Run], latest: Mapping[str, Run]) -> Run:
    by_id = [run for run in there if run.info.run_id.startswith(wanted)]
    if wanted in latest and wanted not in (run.info.run_id for run in by_id):
        return latest[wanted]
    # Four letters or more: a mistyped name must not match the one id that begins with "e".
    if not by_id or len(wanted) < 4:
        raise InputError(
            f"run {wanted!r}: neither an id nor the name of a finished run; the latest are: "
            + (", ".join(map(run_label, list(latest.values())[:-11:-1])) or "none")
        )
    if len(by_id) > 1:
        ids = ", ".join(run.info.run_id for run in by_id)
        raise InputError(f"run {wanted!r}: several ids begin with it: {ids}")
    return by_id[0]


def _download(
    client: MlflowClient, run: Run, part: Part, sources: Collection[Source]
) -> list[EvaluatedRun]:
    there = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    ranks, lists = f"ranks_{part}.parquet", f"lists_{part}.parquet"
    if ranks not in there:
        raise InputError(f"run {run_label(run)}: has no rank table {ranks}: {run.info.status}")
    has_lists = "next_lists" in sources and lists in there
    with tempfile.TemporaryDirectory() as folder:
        fetch = partial(client.download_artifacts, run.info.run_id, dst_path=folder)
        try:
            next_lists = NextListTable.load(fetch(lists)) if has_lists else None
            evaluated = EvaluatedRun(run, RankTable.load(fetch(ranks)), next_lists)
            alone = f"ranks_{part}_model_alone.parquet"
            if alone not in there or has_lists or "logged" in sources:
                return [evaluated]
            table = RankTable.load(fetch(alone))
            return [evaluated, EvaluatedRun(run, table, model_alone=True)]
        except InputError as error:
            raise InputError(f"run {run_label(run)}: {error}") from error
