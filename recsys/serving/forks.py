"""Processes that were forked: polars would wait there for threads that a fork does not copy."""

from __future__ import annotations

import os
from pathlib import Path

from recsys.errors import InputError

_TASKS = Path("/proc/self/task")
_threads = {"at the fork": False, "lost": False}
"""Whether polars had threads when this process was forked, in the parent and in the child."""


def refuse_lost_threads() -> None:
    """Refuse to work in a process that would wait for ever.

    Raises:
        InputError: it was forked from one in which polars had begun to work.
    """
    if _threads["lost"]:
        raise InputError(
            "this process was forked from one that had used a model or a dataset, whose threads a "
            "fork does not copy: start processes by multiprocessing.get_context('spawn')"
        )


def _look() -> None:
    # Without /proc, nobody knows; forking beside threads is not supported there anyway.
    tasks = list(_TASKS.iterdir()) if _TASKS.exists() else []
    _threads["at the fork"] = not tasks or any(_name(task) == "polars-0" for task in tasks)


def _name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # the thread has ended
        return ""


def _lose() -> None:
    _threads["lost"] |= _threads["at the fork"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look, after_in_child=_lose)
