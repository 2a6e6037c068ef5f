"""The memory that a training takes: how much there was of it, and that it is used again."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

_KEPT = {-3: 64 << 20, -1: 512 << 20}
"""By parameter of mallopt(3), in bytes. M_MMAP_THRESHOLD: larger blocks, those of an evaluation,
still leave the heap by themselves. M_TRIM_THRESHOLD: what may lie free at its end."""


def keep_freed_memory() -> None:
    """Let this process use again what the tensors of a step have freed, where glibc would not.

    By itself it hands what a chunk of logits took back to the system, which then has to clear the
    pages of the next one: a quarter of the time of target attention over ten thousand items.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # musl has none
        for parameter, size in _KEPT.items():
            libc.mallopt(parameter, size)


def forget_peak() -> None:
    """Count peaks from here on, where the system can (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        _CLEAR.write_text("5")
    except OSError:
        return  # the peak stays that of the whole process


def peak_memory_mib() -> dict[str, float]:
    """The most memory held since `forget_peak`, in MiB: of the process, and of the GPU if any."""
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
