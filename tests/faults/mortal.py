"""A writer that is killed before a step; the process that forks it may have no threads yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

STEPS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open")


def killed_at(step: int, write: Callable[[], object]) -> bool:
    """Write in a child process that is killed before a step, from 1; whether it got that far."""
    child = os.fork()
    if not child:
        left = iter(range(step - 1, -1, -1))

        def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                if next(left, 1) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return run

        for name in STEPS:
            setattr(os, name, mortal(getattr(os, name)))
        write()
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0
