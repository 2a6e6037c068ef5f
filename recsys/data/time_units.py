"""The likely unit of times that are numbers: seconds since 1970, or finer ones."""

from __future__ import annotations

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from recsys.config import time_value

_FINER_UNITS = (
    (26 * 10**10, 10**3, "milliseconds"),
    (26 * 10**13, 10**6, "microseconds"),
    (26 * 10**16, 10**9, "nanoseconds"),
)
"""Numbers from the first on are epochs in such units, so many in a second: in the unit before they
would be times after the year 9999, which some logs have for a time without end."""
_UNITS = ((1, "seconds"), *((units, name) for _, units, name in _FINER_UNITS))
_FIRST_SECOND, _LAST_SECOND = 5 * 10**8, 5 * 10**9
"""Seconds from 1985 to 2128. In two units, times between them have no number in common."""
_BLOCK = 1 << 20


def units_per_second(time: int) -> int:
    """Return how many units of a time are a second, by its size.

    >>> [units_per_second(time) for time in (20_000, 1_700_000_000, 1_700_000_000_000)]
    [1, 1, 1000]
    """
    return _unit(time)[0]


def unit_name(time: int) -> str:
    """Return the name of the unit of a time, by its size.

    >>> unit_name(1_700_000_000_000_000)
    'microseconds'
    """
    return _unit(time)[1]


def _unit(time: int) -> tuple[int, str]:
    finer = [(units, name) for limit, units, name in _FINER_UNITS if abs(time) >= limit]
    return finer[-1] if finer else (1, "seconds")


def units_in(times: NDArray[np.int64]) -> dict[str, int]:
    """Return the units of Unix times between 1985 and 2128, each with the first such time.

    >>> units_in(np.array([7, 1_700_000_000, 1_700_000_000_000, 1_700_000_001]))
    {'seconds': 1700000000, 'milliseconds': 1700000000000}
    """
    found: dict[str, int] = {}
    for start in range(0, len(times), _BLOCK):
        block = np.asarray(times[start : start + _BLOCK])
        least, most = block.min(), block.max()
        for units, name in _UNITS:
            first, last = _FIRST_SECOND * units, _LAST_SECOND * units
            if name not in found and most >= first and least <= last:
                such = block[(block >= first) & (block <= last)]
                if len(such):
                    found[name] = int(such[0])
    return found


def in_unit(times: NDArray[np.int64], unit: str, other: str) -> NDArray[np.int64]:
    """Convert those Unix times between 1985 and 2128 that are in a unit to another one.

    >>> in_unit(np.array([7, 1_700_000_000, 1_700_000_000_000]), "seconds", "milliseconds").tolist()
    [7, 1700000000000, 1700000000000]
    """
    names = {name: units for units, name in _UNITS}
    old, new = names[unit], names[other]
    such = (times >= _FIRST_SECOND * old) & (times <= _LAST_SECOND * old)
    return np.where(such, times // (old // new) if new < old else times * (new // old), times)


def far_times(times: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return how many of a log's Unix times stand far from the others, and the first one.

    They are of 1970-01-01 or earlier, or after 2128, as dates that stand for an unknown time are,
    and all others are between 1985 and 2128.

    Returns:
        None if there are none, or if the times are no Unix times of one unit.

    >>> far_times(np.array([1_700_000_000, 253_402_300_799, 1_700_000_001, -7]))
    (2, 253402300799)
    >>> far_times(np.array([1, 2, 1_700_000_000])) is None
    True
    """
    units = [units for units, name in _UNITS if name in units_in(times)]
    if len(units) != 1:
        return None
    earliest, latest = _FIRST_SECOND * units[0], _LAST_SECOND * units[0]
    count, first = 0, 0
    for start in range(0, len(times), _BLOCK):
        block = np.asarray(times[start : start + _BLOCK])
        if block.min() >= earliest and block.max() <= latest:
            continue
        far = (block <= 0) | (block > latest)
        if (block[~far] < earliest).any():
            return None
        first = first if count else int(block[far][0])
        count += int(far.sum())
    return (count, first) if count else None


def time_like(given: str | float, time: int) -> float:
    """Return a `Time` on the scale of another: a date in its likely unit, a number as it is.

    >>> time_like("1970-01-02", 1_700_000_000_000), time_like(7, 1_700_000_000_000)
    (86400000.0, 7.0)
    """
    units = units_per_second(time) if isinstance(given, str) else 1
    return time_value(given) * units


def not_before(given: str | float) -> nw.Expr:
    """Whether a row's ``timestamp`` is not before a `Time`, which is put on the scale of the row's.

    Rows are compared one by one, so that this runs on any engine.
    """
    time, earliest = nw.col("timestamp"), time_value(given)
    late = time >= earliest
    if isinstance(given, str):
        for limit, units, _ in _FINER_UNITS:
            late = nw.when(time.abs() < limit).then(late).otherwise(time >= earliest * units)
    return late
