"""The commands: they parse their arguments, call the library and print."""

from __future__ import annotations

import logging
import os
import signal
import sys

from rich.logging import RichHandler

from recsys.cli import (  # noqa: F401 - importing a module registers its commands
    backtests,
    checks,
    configs,
    demonstration,
    evaluation,
    experiments,
    exporting,
    logs,
    profiling,
    recommending,
    registry,
    retrieval,
    run,
    scoring,
    serve,
    suites,
    vectors,
)
from recsys.cli.options import app
from recsys.errors import InputError, NotFirstProcess, Terminated
from recsys.extras import install_hint
from recsys.progress import STDERR

__all__ = ["app", "main"]


def main() -> None:
    """Run a command; print an error that the user can fix as one line and exit with status 2."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=STDERR, show_path=False, show_time=False)],
    )
    is_first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun starts
    logging.getLogger("recsys").setLevel(logging.INFO if is_first else logging.ERROR)
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except NotFirstProcess:  # the first process goes on to evaluate
        sys.exit(0)
    except Terminated:
        sys.exit(128 + signal.SIGTERM)
    except ModuleNotFoundError as error:
        hint = install_hint(error)
        if hint is None:
            raise
        print(f"error: this command {hint}", file=sys.stderr)
        sys.exit(2)
