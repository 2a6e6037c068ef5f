"""The memory of the process: its peak, and the reuse of freed memory."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

_MALLOC_OPTIONS = {-3: 64 << 20, -1: 512 << 20}
"""Parameters of mallopt(3), in bytes. M_MMAP_THRESHOLD: larger blocks, such as those of an
evaluation, are still returned to the system when freed. M_TRIM_THRESHOLD: how much free memory the
end of the heap may hold."""


def keep_freed_memory() -> None:
    """Make glibc reuse the memory that the tensors of a step have freed.

    By default it returns the memory of each chunk of logits to the system, which then has to clear
    the pages of the next chunk: a quarter of the time of training target attention over ten
    thousand items, and a third of the time of scoring three thousand for one user.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # musl has none
        for parameter, size in _MALLOC_OPTIONS.items():
            libc.mallopt(parameter, size)


def reset_peak_memory() -> None:
    """Reset the peaks, where the system supports it (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        _CLEAR.write_text("5")
    except OSError:
        return  # the peak stays that since the start of the process


def peak_memory_mib() -> dict[str, float]:
    """Return the peak memory since `reset_peak_memory` in MiB, of the process and of any GPU."""
    found = {"peak_memory_mib": _process_peak_mib()}
    if torch.cuda.is_available():
        found["peak_gpu_memory_mib"] = torch.cuda.max_memory_allocated() / (1 << 20)
    return found


def _process_peak_mib() -> float:
    if _STATUS.is_file():
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
