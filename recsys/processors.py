"""The processors that this process may use, and how the threads of torch share them."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The quota of a container in microseconds, or ``max``, and its period."""
_EARLIER_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_EARLIER_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
"""Those of the first version of control groups; a quota of -1 is none."""
_SPINS = "1000"


def usable_processors() -> int:
    """Return how many processors this process may use: by its affinity, and the container's quota.

    A quota of two and a half processors counts as two.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    processors = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # none, or the word max
        if _QUOTA.is_file():
            quota, period = map(int, _QUOTA.read_text(encoding="ascii").split())
        else:
            quota, period = (
                int(file.read_text(encoding="ascii")) for file in (_EARLIER_QUOTA, _EARLIER_PERIOD)
            )
        if quota > 0:
            processors = min(processors, max(1, quota // period))
    return processors


def set_up_threads() -> None:
    """Set, before torch is loaded, how many threads it has and how they wait; users' settings win.

    Threads of libgomp spin at every barrier. Where another process takes the processor of one of
    them, all others burn theirs: beside another training an epoch took forty times as long. After a
    thousand spins they sleep, which costs a lone training nothing. Processes that are started
    inherit it.
    """
    settings = {}
    if "OMP_WAIT_POLICY" not in os.environ:
        settings["GOMP_SPINCOUNT"] = _SPINS
    processors = usable_processors()
    if processors < (os.cpu_count() or 1):
        settings["OMP_NUM_THREADS"] = str(processors)
    missing = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(missing)
    if missing and "torch" in sys.modules:
        words = " ".join(f"{name}={value}" for name, value in missing.items())
        logger.warning(
            "torch was imported before recsys: beside other work on this machine its threads may "
            "be forty times as slow; import recsys first, or set %s in the environment",
            words,
        )
