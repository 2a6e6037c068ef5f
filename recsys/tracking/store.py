"""The MLflow store: whether it answers, and its errors in one line."""

from __future__ import annotations

import socket
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from recsys.errors import InputError

_CONTACT_SECONDS = 10
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""The default ports of the databases that MLflow supports."""


@contextmanager
def refuse_broken_store(uri: str) -> Iterator[None]:
    """Turn any error of the store within the block into one line.

    Raises:
        InputError: the store cannot be used.
    """
    try:
        check_server(uri)
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"tracking.uri {uri}: needs the Python package {error.name}, which is not installed"
        ) from error
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = textwrap.shorten(str(error), 300, placeholder=" …")
        raise InputError(f"tracking.uri {uri}: cannot be used: {reason}") from error


def check_server(uri: str) -> None:
    """Refuse a server or database that does not answer; MLflow itself would retry for minutes.

    Raises:
        InputError: nothing answers.
    """
    parts = urlsplit(uri)
    kind = parts.scheme.partition("+")[0]  # postgresql+psycopg2
    try:
        if kind in ("http", "https"):
            # The scheme was checked: this opens no file.
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_CONTACT_SECONDS):  # noqa: S310
                pass
        elif kind in _PORTS and parts.hostname is not None:
            address = parts.hostname, parts.port or _PORTS[kind]
            socket.create_connection(address, _CONTACT_SECONDS).close()
    except urllib.error.HTTPError:
        pass  # a server that answers, with an error
    except (OSError, ValueError) as error:
        raise InputError(f"tracking.uri {uri}: no server answers: {error}") from error
