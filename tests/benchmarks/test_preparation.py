"""From a log to a trained model as the log grows, beside reading the file once and sorting it.

PEERS names the folder that peers.sh filled: peers then prepare the same logs, each in its own
environment, up to PEER_INTERACTIONS (10,000,000) rows; an epoch is trained up to
TRAINED_INTERACTIONS (10,000,000); MOST_INTERACTIONS leaves the largest logs out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

SIZES = (1_000_000, 10_000_000, 100_000_000)
SIDES = Path(__file__).parent / "sides"
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


def cost(python: str | Path, *words: str | Path) -> dict[str, float] | str:
    """What a step in a process of its own takes; or the last line of what it said."""
    command = [str(python), "-W", "ignore", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.splitlines() or [f"ended with {done.returncode}"])[-1]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(name: str, rows: int, found: dict[str, float] | str) -> str:
    if isinstance(found, str):
        return f"{name}: {found}"
    return f"{name} {found['seconds'] * 1e6 / rows:.2f} s per million, {found['mib']:,.0f} MiB"


@pytest.mark.benchmark
def test_preparation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step in a process of its own."""
    most = int(os.environ.get("MOST_INTERACTIONS", "100000000"))
    most_of_peers = int(os.environ.get("PEER_INTERACTIONS", "10000000"))
    most_trained = int(os.environ.get("TRAINED_INTERACTIONS", "10000000"))
    for rows in (size for size in SIZES if size <= most):
        folder = tmp_path / str(rows)
        folder.mkdir()
        log = folder / "log.parquet"
        generate(log, rows)
        ours = SIDES / "our_preparation.py"
        steps = ["sort", "prepare", "audit", *["train"] * (rows <= most_trained)]
        found = {name: cost(sys.executable, ours, name, log, folder / "out") for name in steps}
        for peer in ("rectools", "replay"):
            python = Path(os.environ.get("PEERS", "peers")).absolute() / peer / "bin" / "python"
            if python.is_file() and rows <= most_of_peers:
                found[peer] = cost(python, SIDES / "peer_preparation.py", peer, log)
        prepared, audited = found["prepare"], found["audit"]
        assert not isinstance(prepared, str), prepared
        assert not isinstance(audited, str), audited
        share = audited["seconds"] / (prepared["seconds"] + audited["seconds"])
        parts = "; ".join(shown(name, rows, each) for name, each in found.items())
        with capsys.disabled():
            print(f"\n{rows:,} rows: {parts}; audit {share:.0%}", end="")
        shutil.rmtree(folder)
