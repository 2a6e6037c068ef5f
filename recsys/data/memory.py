"""How much memory this process may use, to refuse in one line what would be killed without one."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from recsys.errors import InputError

_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""The limit of a container, of the two versions of control groups."""
_GIB = 1 << 30
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": _GIB, "tib": 1 << 40}
_SIZE = re.compile(rf"(\d+(?:\.\d+)?) *({'|'.join(_UNITS)})", re.IGNORECASE)


def memory_limit() -> int:
    """Return the bytes of memory of this machine, or of the container that limits it."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _LIMITS:
        with suppress(OSError, ValueError):  # no such limit, or the word max
            limit = min(limit, int(file.read_text(encoding="ascii")))
    return limit


def check_memory(needed: int, purpose: str, remedy: str, gpu_memory: int | None = None) -> None:
    """Refuse what needs more than half of the memory; the rest is for the work itself.

    Args:
        needed: bytes.
        purpose: what needs them, in the plural.
        remedy: what to change.
        gpu_memory: bytes that are free on the GPU, if the memory is its.

    Raises:
        InputError: it needs more.
    """
    limit = memory_limit() if gpu_memory is None else gpu_memory
    if needed > limit // 2:
        raise InputError(
            f"{purpose} need {needed / _GIB:,.1f} GiB of memory, more than half of the "
            f"{limit / _GIB:,.1f} {'there are' if gpu_memory is None else 'free on the GPU'}: "
            f"{remedy}"
        )


def memory_setting(memory: int | str | None) -> int:
    """Return the bytes that a setting such as "4GiB" allows; half of the memory if None.

    Raises:
        InputError: it is no number of bytes, or not above 0.

    >>> memory_setting("1.5 GiB"), memory_setting("200MB"), memory_setting(1000)
    (1610612736, 200000000, 1000)
    """
    if memory is None:
        return memory_limit() // 2
    match = _SIZE.fullmatch(str(memory).strip())
    size = 0 if match is None else int(float(match[1]) * _UNITS[match[2].lower()])
    if size <= 0:
        raise InputError(f"memory: must be a number of bytes such as 4GiB or 500MB, not {memory!r}")
    return size
