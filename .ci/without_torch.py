"""Copy requirements from standard input to standard output, without torch and what it brings."""

from __future__ import annotations

import sys

TORCH = ("cuda-", "nvidia-", "torch==", "triton==")
TOOLS = ("pip==", "setuptools==")  # a virtual environment has its own


def main() -> None:
    """A requirement begins a line; the lines of its hashes are indented."""
    kept = True
    for line in sys.stdin:
        if not line[0].isspace():
            kept = not line.startswith(TORCH + TOOLS)
        if kept:
            sys.stdout.write(line)


if __name__ == "__main__":
    main()
