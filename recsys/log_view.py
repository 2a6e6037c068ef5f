"""The log on standard error, one line per message, above the progress view."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.logging import RichHandler

from recsys.errors import printable
from recsys.progress import STDERR


class _Printable(logging.Formatter):
    """Log lines without control characters: ids in them may come from anyone."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).splitlines()))


def log_handler() -> logging.Handler:
    """Return a handler that writes lines for people."""
    handler = RichHandler(console=STDERR, show_path=False, show_time=False)
    handler.setFormatter(_Printable("%(message)s"))
    return handler


@contextmanager
def shown_log() -> Iterator[None]:
    """Show the library's log during the block, unless the program has set up logging."""
    logger = logging.getLogger("recsys")
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        yield
        return
    handler = log_handler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
