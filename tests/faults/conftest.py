"""The budgets of the attacks, small unless the mark soak is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings


def is_soak(config: pytest.Config) -> bool:
    return "soak" in config.getoption("markexpr")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        "soak",
        max_examples=int(os.environ.get("SOAK_EXAMPLES", "20000")),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    if is_soak(config):
        settings.load_profile("soak")


@pytest.fixture(scope="session")
def budget(pytestconfig: pytest.Config) -> Callable[[int, int], int]:
    """The first of two numbers in continuous integration, the second one in a soak."""
    return lambda small, large: large if is_soak(pytestconfig) else small
