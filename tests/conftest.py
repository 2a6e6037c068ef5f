"""Fixtures of all tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from recsys.tracking.store import write_tables
from recsys.training.device import NO_CUBLAS_CONTEXT

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("recsys", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("recsys")


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder of real logs; tests that ask for it are marked ``realdata``."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("RECSYS_MIRROR") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real logs: RECSYS_MIRROR names no folder and {beside} does not exist")
    return folder.resolve()


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """The environment in which Spark's workers find Python and this library."""
    pytest.importorskip("pyspark.sql", reason="pyspark is not installed: the extra spark")
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        pytest.skip("no Java runtime")
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="module")
def spark(spark_environment: dict[str, str]) -> Iterator[Any]:
    """A small session of Spark on this machine; tests that ask for it are marked ``spark``."""
    sql = import_module("pyspark.sql")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment.items():
            patch.setenv(name, value)
        builder = sql.SparkSession.builder.master("local[2]")
        for name, value in SPARK_SETTINGS.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


SPARK_SETTINGS = {
    # A session of minutes is over before its code is compiled well: compile it quickly.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "America/Lima",  # that of the session must not matter
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_timed(pytestconfig: pytest.Config) -> Iterator[None]:
    """Settle ``training.precision: auto`` as float32 on every machine; see test_precision.py.

    Benchmarks measure it as users do.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "benchmark" not in str(pytestconfig.getoption("-m")):
            patch.setattr("recsys.training.device.bf16_share", lambda *_: 1.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _tables_are_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy the empty MLflow store, whose migrations take seconds, wherever one is made anew.

    Processes that tests start make their own.
    """
    store = tmp_path_factory.mktemp("store") / "mlflow.db"

    def copy_tables(file: Path) -> None:
        if not store.exists():
            write_tables(store)
        shutil.copyfile(store, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.tracking.store.write_tables", copy_tables)
        yield


@contextmanager
def no_gpu() -> Iterator[None]:
    """Hide every GPU from this process and from those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.cuda, "device_count", lambda: 0)  # which Lightning asks
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the warning on a GPU that trainings ignore; all others are errors (pyproject.toml)."""
    config.addinivalue_line("filterwarnings", f"ignore:{NO_CUBLAS_CONTEXT}:UserWarning")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with its fixtures; hide the GPU unless it is marked as one that needs it.

    Whatever was selected: what other tests expect was computed on a CPU.
    """
    if item.get_closest_marker("gpu") or item.get_closest_marker("benchmark"):
        return (yield)
    with no_gpu():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark notebooks as slow; skip benchmarks and soaks unless the command line names their mark.

    Benchmarks take long and judge the machine as much as the code.
    """
    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker("slow")
    for mark, what in (("benchmark", "a benchmark"), ("soak", "takes hours")):
        if mark in config.getoption("markexpr"):
            continue
        skip = pytest.mark.skip(reason=f"{what}: ask for it with make {mark}")
        for item in items:
            if item.get_closest_marker(mark):
                item.add_marker(skip)
