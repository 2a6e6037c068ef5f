"""The budgets of the attacks, small unless the mark soak is asked for, and the table of counts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

Tally = Callable[[str, int, int], None]
"""Adds to the counts of an attack: its name, how often it was tried and how often all held."""

_TRIED, _HELD = pytest.StashKey[Counter[str]](), pytest.StashKey[Counter[str]]()
_SOAK_EXAMPLES = int(os.environ.get("SOAK_EXAMPLES", "20000"))


def is_soak(config: pytest.Config) -> bool:
    return "soak" in config.getoption("markexpr")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TRIED], config.stash[_HELD] = Counter(), Counter()
    settings.register_profile(
        "soak",
        max_examples=_SOAK_EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    if is_soak(config):
        settings.load_profile("soak")


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    def add(attack: str, tried: int, held: int) -> None:
        pytestconfig.stash[_TRIED][attack] += tried
        pytestconfig.stash[_HELD][attack] += held

    return add


@pytest.fixture(scope="session")
def budget(pytestconfig: pytest.Config) -> Callable[[int, int], int]:
    """The first of two numbers in continuous integration, the second one in a soak."""
    return lambda small, large: large if is_soak(pytestconfig) else small


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    tried, held = config.stash[_TRIED], config.stash[_HELD]
    if not tried:
        return
    terminalreporter.section("attacks")
    rows = [("attack", "tried", "held"), ("---", "---:", "---:")]
    rows += [(name, f"{tried[name]:,}", f"{held[name]:,}") for name in sorted(tried)]
    for row in rows:
        terminalreporter.write_line(f"| {' | '.join(row)} |")
