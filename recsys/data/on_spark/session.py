"""Spark sessions and frames, with errors in one line and nothing printed."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

from recsys.errors import InputError, one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Through these pyspark prints each error a second time, as pages of JSON."""
_LONGEST = 500


def is_spark_frame(source: object) -> TypeGuard[DataFrame]:
    """Return whether this is a frame of Spark, of a session in this process or of Spark Connect."""
    sql = sys.modules.get("pyspark.sql")  # who has a frame has loaded it
    return sql is not None and isinstance(source, sql.DataFrame)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield the active session, or start one as the environment says, on this machine by default.

    A session that is started here prints nothing, and is stopped at the end.

    Raises:
        ModuleNotFoundError: pyspark is not installed.
        InputError: the session cannot be started.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the engine Spark needs it

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers of this machine
    builder: Any = SparkSession.builder.appName("recsys prepare")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }.items():
        builder = builder.config(name, value)
    with spark_errors("Spark"), _silent():
        session: SparkSession = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def spark_errors(origin: str) -> Iterator[None]:
    """Make one line of what goes wrong in Spark, without its warnings and records.

    Raises:
        InputError: Spark failed.
    """
    from pyspark.errors import PySparkException, PySparkRuntimeError  # noqa: I001, PLC0415
    from py4j.protocol import Py4JError  # noqa: PLC0415 - if both are missing, pyspark is named

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="pyspark")
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            yield
    except (PySparkException, PySparkRuntimeError, Py4JError) as error:
        raise InputError(f"{origin}: Spark: {_reason(str(error))}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(text: str) -> str:
    r"""Return the line of an error that tells what went wrong.

    >>> _reason("An error occurred while calling o1.collect.\n: org.X: Job aborted\n"
    ...         "Caused by: java.io.IOException: no space\n\tat a.b\n")
    'java.io.IOException: no space'
    >>> _reason("\n  An exception was thrown:\nTraceback (most recent call last):\n"
    ...         "  File x\nModuleNotFoundError: No module named 'polars'\n\nJVM stacktrace:")
    "ModuleNotFoundError: No module named 'polars'"
    """
    lines = text.partition("JVM stacktrace:")[0].splitlines()
    if any(line.startswith("Traceback") for line in lines):
        last = [line for line in lines if line[:1].isalpha() and "Error" in line]
        return one_line((last or lines)[-1], _LONGEST)
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if causes:
        return one_line(causes[-1].removeprefix("Caused by: "), _LONGEST)
    said = [line.removeprefix(": ") for line in lines if line.strip()]
    first = next((line for line in said if not line.startswith("An error occurred")), "failed")
    return one_line(first, _LONGEST)


@contextmanager
def _silent() -> Iterator[None]:
    """Send what a process that is started meanwhile prints to nowhere.

    Java names its modules and Spark its log before any setting is read; what is printed later by
    the process goes there too. The outputs of Python itself are as before afterwards.
    """
    kept = {number: os.dup(number) for number in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in kept:
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)
