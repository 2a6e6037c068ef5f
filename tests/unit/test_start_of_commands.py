"""What the command line loads before it knows which command is asked for."""

from __future__ import annotations

import subprocess
import sys

SLOW_TO_LOAD = "{'torch', 'scipy', 'sklearn', 'pandas', 'mlflow', 'lightning_fabric', 'matplotlib'}"


def test_help_and_refused_options_do_not_wait_for_torch() -> None:
    code = f"import sys, recsys.cli; print(sorted({SLOW_TO_LOAD} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
