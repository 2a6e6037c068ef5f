"""What is to be written to the store of a run, kept until the store has taken it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from recsys.errors import InputError, one_line
from recsys.tracking.store import STORE_ERRORS, check_store_answers

logger = logging.getLogger(__name__)

_PAUSE = 60.0
"""Seconds after a failure before the store is tried again: each try may take seconds."""


@dataclass
class Outbox:
    """Writes to a store, in order; those that fail are kept and tried again."""

    uri: str
    """The store."""
    waiting: list[Callable[[], object]] = field(default_factory=list)
    """What the store has not taken yet."""
    reason: str = ""
    """Why it has not, in one line; empty if nothing waits."""
    _failed: float = field(default=-_PAUSE, repr=False)
    """When the store failed last."""

    def put(self, write: Callable[[], object]) -> None:
        """Write, or keep the write for later if the store failed a moment ago."""
        self.waiting.append(write)
        if time.monotonic() - self._failed >= _PAUSE:
            self.flush()

    def flush(self) -> None:
        """Write all that waits; a warning says the first time that something must wait."""
        if not self.waiting:
            return
        told, left, self.reason = bool(self.reason), self.waiting, ""
        self.waiting = []
        try:
            for number, write in enumerate(left):
                self._try(write, left[number:])
        except InputError as error:  # the store does not answer
            self.reason = str(error)
        if not self.waiting:
            return
        self._failed = time.monotonic()
        if not told:
            logger.warning("%s; the records are kept, and will be sent again", self.reason)

    def _try(self, write: Callable[[], object], left: list[Callable[[], object]]) -> None:
        """Write; or keep it, and all that is left if the store does not answer at all.

        Raises:
            InputError: the store does not answer.
        """
        try:
            write()
        except STORE_ERRORS as error:
            self.reason = f"tracking.uri {self.uri}: cannot be written to: {one_line(error, 300)}"
            try:
                check_store_answers(self.uri)
            except InputError:
                self.waiting += left
                raise
            self.waiting.append(write)
