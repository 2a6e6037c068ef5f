"""How much memory this process may use, to refuse in one line what would be killed without one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from recsys.errors import InputError

_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""The limit of a container, of the two versions of control groups."""
_GIB = 1 << 30


def memory_limit() -> int:
    """Return the bytes of memory of this machine, or of the container that limits it."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _LIMITS:
        with suppress(OSError, ValueError):  # no such limit, or the word max
            limit = min(limit, int(file.read_text(encoding="ascii")))
    return limit


def check_memory(needed: int, purpose: str, remedy: str) -> None:
    """Refuse what needs more than half of the memory; the rest is for the work itself.

    Args:
        needed: bytes.
        purpose: what needs them, in the plural.
        remedy: what to change.

    Raises:
        InputError: it needs more.
    """
    limit = memory_limit()
    if needed > limit // 2:
        raise InputError(
            f"{purpose} need {needed / _GIB:,.1f} GiB of memory, more than half of the "
            f"{limit / _GIB:,.1f} there are: {remedy}"
        )
