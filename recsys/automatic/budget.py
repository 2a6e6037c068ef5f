"""The time budget of an automatic run."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from recsys.errors import InputError

_END_SHARE = 0.2
"""The share of the limit that is kept for what follows the training, at most."""
_PAGE_SECONDS, _PAGE_SHARE = 10.0, 0.07
"""Seconds for the page and the bundle, and the share of the limit that they have at most."""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass
class Budget:
    """A number of seconds, which pass from a moment on: by default from when it is made."""

    limit: float
    """Seconds of the whole run."""
    before: float = 0.0
    """Seconds that an interrupted run had used already."""
    started: float = field(default_factory=time.monotonic, repr=False)
    """The moment, by `time.monotonic`."""

    @property
    def spent(self) -> float:
        """Seconds used so far."""
        return self.before + time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds left; negative once the limit is exceeded."""
        return self.limit - self.spent

    @property
    def seconds_of_page(self) -> float:
        """Seconds that are kept for the page."""
        return min(_PAGE_SECONDS, _PAGE_SHARE * self.limit)

    def left_to_train(self, testing: float) -> float:
        """Return the seconds that are left if tests take so many, or all that is kept for them."""
        return self.left - min(_END_SHARE * self.limit, testing + self.seconds_of_page)


def parse_time_limit(limit: str | float) -> float:
    """Return a time limit in seconds.

    >>> [parse_time_limit(limit) for limit in ("30m", "1.5h", "90", 5)]
    [1800.0, 5400.0, 90.0, 5.0]

    Raises:
        InputError: it is not a positive number with the unit s, m or h.
    """
    units = r"(?:(s)(?:ec(?:onds?)?)?|(m)(?:in(?:utes?)?)?|(h)(?:ours?)?|)"
    found = re.fullmatch(rf"\s*(\d+(?:\.\d*)?|\.\d+)\s*{units}\s*", str(limit))
    unit = next(filter(None, found.groups()[1:]), "") if found else ""
    seconds = float(found[1]) * _UNITS[unit] if found else 0.0
    if not seconds > 0:
        raise InputError(f"time limit {limit!r}: must be a time such as 90s, 30m or 1.5h")
    return seconds
