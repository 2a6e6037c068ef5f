"""Where the time of a run goes: preparation, baselines, training, validation, evaluation."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

_NOTABLE = 0.1
"""From this share of the time of training on, the line on a phase says how large it is."""


@dataclass
class Phases:
    """The seconds of the phases of a run, in the order in which they began.

    >>> phases = Phases()
    >>> phases.add("preparation", 3.0)
    >>> phases.add("training", 100.0)
    >>> phases.add("validation", 20.0)
    >>> print(phases)
    preparation 3.0 s, training 100.0 s, validation 20.0 s (20% of training)
    """

    seconds: dict[str, float] = field(default_factory=dict)
    """By the name of the phase."""

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to a phase."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def of(self, *names: str) -> float:
        """Return the seconds of some phases together."""
        return sum(self.seconds.get(name, 0.0) for name in names)

    def metrics(self) -> dict[str, float]:
        """Return the seconds as metrics of a run: ``seconds_of/PHASE``."""
        return {f"seconds_of/{name}": seconds for name, seconds in self.seconds.items()}

    def log(self) -> None:
        """Log one line on all phases."""
        logger.debug("time: %s", self)

    def __str__(self) -> str:
        """Return the phases on one line; large ones with their share of the training's time."""
        return ", ".join(
            f"{name} {each:.1f} s{self._share(name)}" for name, each in self.seconds.items()
        )

    def _share(self, name: str) -> str:
        training = self.seconds.get("training", 0.0)
        if name == "training" or not training or self.seconds[name] < _NOTABLE * training:
            return ""
        return f" ({self.seconds[name] / training:.0%} of training)"
