"""The MLflow store: opened, whether it answers, and its errors in one line."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.exc import SQLAlchemyError

from recsys.config import TrackingConfig
from recsys.errors import InputError, one_line
from recsys.folders.atomic import new_file
from recsys.tracking.links import EXPERIMENT_TAGS

STORE_ERRORS = (MlflowException, SQLAlchemyError, OSError)
"""What MLflow raises where its store fails."""

_CONTACT_SECONDS = 10
_LOCKED_SECONDS = 5
_LOCK_SECONDS = 20
"""Longer than it takes to make the tables of a new store."""
_SQLITE = "sqlite:///"
_DISK_FULL = "database or disk is full"
"""SQLite's words."""
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""The default ports of the databases that MLflow supports."""


@contextmanager
def refuse_broken_store(uri: str, *, to_read: bool = False) -> Iterator[None]:
    """Turn any error of the store within the block into one line.

    Args:
        uri: the store.
        to_read: whether nothing is written; a SQLite file may be read-only then.

    Raises:
        InputError: the store cannot be used.
    """
    try:
        check_store_answers(uri, to_read=to_read)
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"tracking.uri {uri}: needs the Python package {error.name}, which is not installed"
        ) from error
    except STORE_ERRORS as error:
        reason = "the disk is full" if _DISK_FULL in str(error) else one_line(error, 300)
        raise InputError(f"tracking.uri {uri}: cannot be used: {reason}") from error


def check_store_answers(uri: str, *, to_read: bool = False) -> None:
    """Refuse a store that does not answer; MLflow itself would retry for minutes.

    Raises:
        InputError: nothing answers within seconds, or a SQLite file cannot be used.
    """
    if uri.startswith(_SQLITE):
        _check_file(uri, Path(uri.removeprefix(_SQLITE).partition("?")[0]), to_read=to_read)
    else:
        _check_server(uri)


def _check_file(uri: str, file: Path, *, to_read: bool) -> None:
    if file.is_dir():
        raise InputError(f"tracking.uri {uri}: {file} is a folder, not a SQLite file")
    try:
        with closing(sqlite3.connect(file, _LOCKED_SECONDS, isolation_level=None)) as store:
            store.execute("PRAGMA schema_version" if to_read else "BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        raise InputError(f"tracking.uri {uri}: cannot be used: {one_line(error)}") from error
    if not (to_read or all(os.access(path, os.W_OK) for path in (file, file.parent))):
        raise InputError(f"tracking.uri {uri}: cannot be written to: {file} is read-only")


def _check_server(uri: str) -> None:
    parts = urlsplit(uri)
    kind = parts.scheme.partition("+")[0]  # postgresql+psycopg2
    try:
        if kind in ("http", "https"):
            # The scheme was checked: this opens no file.
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_CONTACT_SECONDS):  # noqa: S310  # nosec B310
                pass
        elif kind in _PORTS and parts.hostname is not None:
            address = parts.hostname, parts.port or _PORTS[kind]
            socket.create_connection(address, _CONTACT_SECONDS).close()
    except urllib.error.HTTPError:
        pass  # a server that answers, with an error
    except (OSError, ValueError) as error:
        raise InputError(f"tracking.uri {uri}: no server answers: {error}") from error


def store_lock(tracking: TrackingConfig) -> AbstractContextManager[object]:
    """Return a lock under which one process at a time opens the store.

    MLflow itself lets two processes create the tables of a new one. An empty file, FILE.lock,
    remains next to the SQLite file. A store in a read-only folder has its tables, and needs none.
    """
    if tracking.database is None or not os.access(tracking.database.parent, os.W_OK):
        return nullcontext()
    return FileLock(f"{tracking.database}.lock", timeout=_LOCK_SECONDS)


def check_store(config: TrackingConfig) -> None:
    """Refuse a store that cannot be used, before hours of training.

    Raises:
        InputError: it cannot be reached or written.
    """
    open_store(config)


def _make_tables(database: Path) -> None:
    """Make the tables of a new SQLite store beside it, and put it there whole.

    MLflow makes them in many steps of their own, and cannot go on where a kill or a full disk ended
    them.
    """
    if database.exists() and database.stat().st_size:
        return
    with new_file(database) as part:
        write_tables(part)


def write_tables(file: Path) -> None:
    """Write a new SQLite store without runs."""
    SqlAlchemyStore(f"{_SQLITE}{file}", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).engine.dispose()


def open_store(config: TrackingConfig) -> tuple[MlflowClient, str]:
    """Return the client and the id of the experiment, which is created if new."""
    # The first use of a SQLite store prints some forty lines of schema migrations.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    location = None
    if config.database is not None:
        location = (config.database.parent / "mlartifacts").as_uri()
        try:
            config.database.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"cannot be used: {error.strerror}"
            raise InputError(f"tracking.uri {config.uri}: {reason}") from error
    with refuse_broken_store(config.uri), store_lock(config):
        if config.database is not None:
            _make_tables(config.database)
        client = MlflowClient(config.absolute_uri)
        known = client.get_experiment_by_name(config.experiment)
        if known is not None:
            return client, known.experiment_id
        experiment_id = client.create_experiment(
            config.experiment, artifact_location=location, tags=EXPERIMENT_TAGS
        )
        return client, experiment_id
