"""Commands in processes of their own, as a user starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start(
    home: Path, words: Sequence[str], stderr: int = subprocess.STDOUT
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "recsys", *words],
        cwd=home,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def finish(home: Path, words: Sequence[str]) -> tuple[int, str]:
    process = start(home, words)
    printed, _ = process.communicate(timeout=600)
    return process.returncode, printed


def kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
