"""The memory of training over a million items, in one process and divided over two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ITEMS, DIM = int(os.environ.get("ITEMS", "1000000")), 64
HERE = Path(__file__).parent
SIDE = str(HERE / "sides" / "divided_side.py")


def steps(folder: Path, loss: str, *, processes: int) -> list[dict[str, object]]:
    """Train for a few steps; return what each process found."""
    folder.mkdir()
    words = [sys.executable, SIDE]
    if processes > 1:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words += ["--nproc-per-node", str(processes), SIDE]
    words += [str(folder), str(ITEMS), str(DIM), loss, "divided" if processes > 1 else "whole"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    subprocess.run(words, check=True, env=environment, timeout=900)
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


@pytest.mark.benchmark
@pytest.mark.parametrize("loss", ["cross_entropy", "sampled_softmax"])
def test_memory_of_a_divided_table(
    loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table, gradient and AdamW's moments in float32, and what a step leaves; ITEMS sizes it."""
    (whole,) = steps(tmp_path / "one", loss, processes=1)
    halves = steps(tmp_path / "two", loss, processes=2)
    with capsys.disabled():
        print(
            f"\n{loss}, {ITEMS:,} items of width {DIM}, memory of a process above that before, MiB:"
        )
        for name, found in (("whole", whole), ("first half", halves[0]), ("second", halves[1])):
            share = float(str(found["mib"])) / float(str(whole["mib"]))
            print(f"{name}: {found['mib']:,.0f} ({share:.2f}), losses {found['losses']}")
    assert float(str(halves[1]["mib"])) < float(str(whole["mib"]))
