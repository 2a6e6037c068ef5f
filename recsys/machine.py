"""The machine: its processors and how torch's threads share them, and memory."""

import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The quota of a container in microseconds, or ``max``, and its period."""


def usable_processors() -> int:
    """Return how many processors this process may use: by affinity and the container's quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    processors = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # none, or the word max
        quota, period = map(int, _QUOTA.read_text().split())
        processors = min(processors, max(1, quota // period))
    return processors


def set_up_threads() -> None:
    """Set, before torch is loaded, how many threads it has and how they wait; users' settings win.

    Threads of libgomp spin at every barrier: beside another training an epoch took forty times as
    long. After a thousand spins they sleep, which costs a lone training nothing.
    """
    settings = {} if "OMP_WAIT_POLICY" in os.environ else {"GOMP_SPINCOUNT": "1000"}
    processors = usable_processors()
    if processors < (os.cpu_count() or 1):
        settings["OMP_NUM_THREADS"] = str(processors)
    os.environ.update(settings | os.environ)


def keep_freed_memory() -> None:
    """Make glibc reuse the memory that the tensors of a step have freed.

    By default it returns the memory of each chunk of logits to the system, which then clears the
    pages of the next one: a quarter of the time of training target attention over ten thousand
    items, and a third of that of scoring three thousand for one user.
    """
    libc = ctypes.CDLL(None)
    if sys.platform.startswith("linux") and hasattr(libc, "mallopt"):  # musl has none
        # M_MMAP_THRESHOLD: larger blocks are still returned when freed. M_TRIM_THRESHOLD: how much
        # free memory the end of the heap may hold.
        for parameter, size in {-3: 64 << 20, -1: 512 << 20}.items():
            libc.mallopt(parameter, size)


def reset_peak_memory() -> None:
    """Reset the peaks, where the system supports it (Linux, CUDA)."""
    import torch  # noqa: PLC0415 - this module is imported before it

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # the peak stays that since the start of the process
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mib() -> dict[str, float]:
    """Return the peak memory since `reset_peak_memory` in MiB, of the process and of any GPU."""
    import torch  # noqa: PLC0415

    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    if known := [line for line in lines if line.startswith("VmHWM:")]:  # not in every sandbox
        peak = int(known[0].split()[1]) / 1024
    else:
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak = used / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    peaks = {"peak_memory_mib": peak}
    if torch.cuda.is_available():
        peaks["peak_gpu_memory_mib"] = torch.cuda.max_memory_allocated() / (1 << 20)
    return peaks
