"""The commands: they parse their arguments, call the library and print."""

import logging
import os
import signal
import sys

# Importing a module registers its commands.
from recsys.cli import answers, deploy, start, train  # noqa: F401
from recsys.cli.options import PANELS, app
from recsys.errors import InputError, Terminated, install_hint, terminate
from recsys.progress import log_handler

__all__ = ["app", "main"]

app.registered_commands.sort(key=lambda command: PANELS.index(str(command.rich_help_panel)))


def main() -> None:
    """Run a command; print an error that the user can fix as one line and exit with status 2."""
    logging.basicConfig(level=logging.WARNING, handlers=[log_handler()])
    several = "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1"  # torchrun
    is_first = not several or os.environ["RANK"] == "0"
    logging.getLogger("recsys").setLevel(logging.INFO if is_first else logging.ERROR)
    if not several:  # torchrun ends its processes by SIGTERM, at once
        signal.signal(signal.SIGTERM, terminate)
    try:
        if several and "train" not in sys.argv[1:2]:
            raise InputError("torchrun: only train runs in several processes")
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Terminated:
        sys.exit(128 + signal.SIGTERM)
    except ModuleNotFoundError as error:
        hint = install_hint(error)
        if hint is None:
            raise
        print(f"error: this command {hint}", file=sys.stderr)
        sys.exit(2)
