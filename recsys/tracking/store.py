"""The MLflow store: opened, its errors in one line, and links to its pages."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils as databases
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.exc import SQLAlchemyError

from recsys.config.experiment import TrackingConfig
from recsys.errors import InputError, one_line
from recsys.folders.atomic import new_file, sole_use

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
