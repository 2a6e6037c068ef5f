"""Pieces of work that take turns in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def medians_in_turn(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each; a first round, which compiles kernels, does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if round_:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}
