"""Tests in a process of their own, whose environment changes what torch is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def passed_in_own_process(file: str, **environment: str) -> int:
    """Run the tests of a file of the repository, and return how many passed; none may fail."""
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]
    passed = re.search(r"(\d+) passed", process.stdout)
    assert passed is not None
    return int(passed[1])
