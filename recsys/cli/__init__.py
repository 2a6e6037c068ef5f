"""The commands: parse, call, print."""

from __future__ import annotations

import logging
import os
import signal
import sys

from rich.console import Console
from rich.logging import RichHandler

from recsys.cli import (  # noqa: F401 - they bring their commands along
    backtests,
    experiments,
    profiling,
    retrieval,
    scoring,
    suites,
)
from recsys.cli.options import app
from recsys.errors import InputError, NotFirstProcess, Terminated

__all__ = ["app", "main"]


def main() -> None:
    """Entry point: one line for what users can mend, and status 2."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False, show_time=False)],
    )
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun has started
    logging.getLogger("recsys").setLevel(logging.INFO if first else logging.ERROR)
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except NotFirstProcess:  # the first process goes on to evaluate
        sys.exit(0)
    except Terminated:
        sys.exit(128 + signal.SIGTERM)
