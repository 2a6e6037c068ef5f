"""Ranking 100,000 users over 100,000 items with metrics, beside RecTools and RePlay."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

SIDES = Path(__file__).with_name("ranking_sides.py")
USERS = ITEMS = 100_000
ROUNDS = 3


@pytest.mark.benchmark
def test_ranking_with_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """Medians of 3 rounds in turn; PEERS names the folder that peers.sh made."""
    pythons = {"ours": sys.executable, "ours, with lists": sys.executable}
    peers = Path(os.environ.get("PEERS", "peers"))
    for peer in ("rectools", "replay"):
        if (interpreter := peers / peer / "bin" / "python").is_file():
            pythons[peer] = str(interpreter)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in pythons}
    for _ in range(ROUNDS):
        for side, python in pythons.items():
            command = [python, "-W", "ignore", str(SIDES), side, str(USERS), str(ITEMS)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[side].append(json.loads(out.splitlines()[-1]))
    first = found["ours"][0]
    with capsys.disabled():
        for side, rounds in found.items():
            seconds = statistics.median(one["seconds"] for one in rounds)
            mib = statistics.median(one["mib"] for one in rounds)
            for metric in ("recall", "ndcg"):
                assert rounds[0][metric] == pytest.approx(first[metric], abs=1e-6)
            print(
                f"\n{side}: {seconds:.1f} s, {USERS / seconds:,.0f} users/s, "
                f"{mib:,.0f} MiB above the data",
                end="",
            )
