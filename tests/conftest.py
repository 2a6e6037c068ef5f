"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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


@pytest.fixture(scope="session", autouse=True)
def _float32_is_faster() -> Iterator[None]:
    """Settle ``training.precision: auto`` the same on every machine; see test_precision.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.training.product_timing.bf16_share", lambda *_: 1.0)
        yield


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
