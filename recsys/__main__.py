"""``recsys`` and ``python -m recsys``."""

import signal
import sys


def main() -> None:
    """Run a command; Ctrl-C while it is being loaded ends it as quietly as later."""
    try:
        from recsys.cli import main as run  # noqa: PLC0415 - it takes a second

        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
