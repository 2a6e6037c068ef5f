"""What preparation and audit cost as the log grows, beside reading the file once and sorting it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset, prepare

SIZES = (1_000_000, 10_000_000, 100_000_000)
MEMORY = os.environ.get("MEMORY", "4GiB")
_BLOCK = 1_000_000


def generate(path: Path, rows: int) -> None:
    """Write a log of 30 rows per user and Zipf-like items, in no order, block by block."""
    rng = np.random.default_rng(0)
    writer = None
    for _ in range(0, rows, _BLOCK):
        block = pl.DataFrame(
            {
                "user_id": rng.integers(rows // 30, size=_BLOCK),
                "item_id": (200_000 * rng.random(_BLOCK) ** 3).astype(np.int64),
                "timestamp": 1_600_000_000 + rng.integers(30_000_000, size=_BLOCK),
            }
        ).with_columns(pl.format("U{}", "user_id").alias("user_id"))
        table = block.to_arrow()
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


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
    work()
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    return {"seconds": seconds, "mib": peak[0]}


def step(name: str, log: Path, out: Path) -> dict[str, float]:
    """Do one step in this process."""
    if name == "sort":
        connection = duckdb.connect()
        connection.execute(f"set memory_limit = '{MEMORY}'; set temp_directory = '{out}.duckdb'")
        rows = connection.read_parquet(str(log), file_row_number=True)
        ordered = rows.order("user_id, timestamp, file_row_number")
        return measured(lambda: ordered.write_parquet(f"{out}.parquet"))
    if name == "prepare":
        return measured(lambda: prepare(str(log), out=out, memory=MEMORY))
    dataset = PreparedDataset.open(out)
    return measured(lambda: audit(dataset))


@pytest.mark.benchmark
def test_preparation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step in a process of its own; MOST_INTERACTIONS leaves the largest logs out."""
    most = int(os.environ.get("MOST_INTERACTIONS", "100000000"))
    for rows in (size for size in SIZES if size <= most):
        folder = tmp_path / str(rows)
        folder.mkdir()
        generate(folder / "log.parquet", rows)
        found = {}
        for name in ("sort", "prepare", "audit"):
            command = [sys.executable, "-W", "ignore", __file__, name, str(folder)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[name] = json.loads(out.splitlines()[-1])
        share = found["audit"]["seconds"] / sum(found[n]["seconds"] for n in ("prepare", "audit"))
        parts = (
            f"{name} {cost['seconds'] * 1e6 / rows:.2f} s per million, {cost['mib']:,.0f} MiB"
            for name, cost in found.items()
        )
        with capsys.disabled():
            print(f"\n{rows:,} rows: {'; '.join(parts)}; audit {share:.0%}", end="")
        shutil.rmtree(folder)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    print(json.dumps(step(sys.argv[1], place / "log.parquet", place / "out")))
