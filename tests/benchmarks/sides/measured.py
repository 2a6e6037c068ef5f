"""What a piece of work takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of the work, and the peak in MiB of memory that no file backs."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            status = Path("/proc/self/status").read_text(encoding="ascii")
            line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
            peak[0] = max(peak[0], int(line.split()[1]) // 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return {"seconds": time.perf_counter() - started, "mib": peak[0]}
