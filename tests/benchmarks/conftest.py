"""Benchmarks take long and judge the machine as much as the code: they run only when asked for."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "benchmark" in config.getoption("markexpr"):
        return
    skip = pytest.mark.skip(reason="a benchmark: ask for it with make benchmark")
    for item in items:
        if item.get_closest_marker("benchmark"):
            item.add_marker(skip)
