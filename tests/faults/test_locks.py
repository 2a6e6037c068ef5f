"""Two processes that want the same folder: one works, the other is told by whom it is held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recsys.folders import BusyError, sole_use

HOLDER = """
import sys, time
from pathlib import Path
from recsys.folders import sole_use
with sole_use(Path(sys.argv[1]), "trains it"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(path: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(path), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_holder_is_named_and_a_kill_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "run"
    holder = hold(path, 60)
    try:
        with pytest.raises(BusyError) as caught, sole_use(path, "trains it"):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    message = str(caught.value)
    assert message.startswith(f"{path}: in use: process {holder.pid} on ")
    assert ", which trains it since 2" in message
    assert "\n" not in message
    with sole_use(path, "trains it"):
        assert (tmp_path / ".run.lock").exists()
    assert not list(tmp_path.iterdir())


def test_many_contenders_never_hold_it_together(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from recsys.folders import sole_use
root = Path(sys.argv[1])
for _ in range(100):
    with sole_use(root / "x", "counts", patience=30):
        number = int((root / "count").read_text())
        (root / "count").write_text(str(number + 1))
"""
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "300"
