"""Two ways to do the same, timed side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

WORTHWHILE = 0.9
"""The share of the usual way's time below which another one is taken: less is not worth a coarser
rounding, and what a busy machine adds to one of the two does not decide."""
_SECONDS, _FEWEST = 0.1, 5
"""How long both are timed, and how often each at least."""
_HOPELESS, _TWICE = 3.0, 2
"""A way that takes three times as long, two times in a row, is timed no further: processors
without bf16 instructions emulate them, and five calls took seconds."""


def median_share(
    one: Callable[[], object],
    other: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    seconds: float = _SECONDS,
) -> float:
    """Return the median time of the first function as a share of that of the second.

    Both are called in turn, so that what else the machine does slows both, for so many seconds and
    five times at least; a first call of each, which may compile kernels, is not counted. If the
    first function is much slower, two calls are enough.
    """
    one()
    other()
    times: tuple[list[float], list[float]] = ([], [])
    started = clock()
    while len(times[0]) < _FEWEST or clock() - started < seconds:
        for function, found in zip((one, other), times, strict=True):
            begun = clock()
            function()
            found.append(clock() - begun)
        if len(times[0]) == _TWICE and min(times[0]) > _HOPELESS * max(times[1]):
            break
    mine, others = map(statistics.median, times)
    return mine / others
