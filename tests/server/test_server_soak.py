"""The server under mixed requests at a set rate, for an hour: no failure, and flat memory."""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

from recsys.data.prepared import PreparedDataset
from recsys.serving.bundle import ModelBundle
from tests.helpers.server_process import process, write_other

MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
RATE = float(os.environ.get("SOAK_RATE", "50"))
"""Requests per second."""
HAT = {"history": ["hat", "boots"]}
REQUESTS: list[tuple[str, bytes, int]] = [
    *[("/v1/recommend", json.dumps({**HAT, "k": 3}).encode(), 200)] * 6,
    *[("/v1/score", json.dumps({**HAT, "candidates": ["socks", "hat"]}).encode(), 200)] * 4,
    ("/v1/similar", json.dumps({"item_id": "hat", "k": 2}).encode(), 200),
    ("/v1/explain", json.dumps({**HAT, "item_id": "socks"}).encode(), 200),
    ("/v1/recommend", json.dumps({"history": ["nothing known"], "k": 3}).encode(), 200),
    ("/v1/score", b'{"history": ["hat"', 400),
    ("/v1/recommend", json.dumps({**HAT, "k": -1}).encode(), 422),
    ("/v1/recommend", b" " * 2_000_000, 413),
]
"""Paths, bodies, and the status of the answer."""


@pytest.mark.soak
def test_an_hour_of_mixed_requests_at_a_set_rate(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Now and then a client leaves before its answer; the bundle is replaced each minute."""
    bundle = shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    chance = random.Random(0)  # noqa: S311 - no secret
    statuses: Counter[tuple[int, int]] = Counter()
    memory: list[int] = []
    with process(bundle) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        began = time.monotonic()
        number, replaced = 0, 0
        while (now := time.monotonic() - began) < 60 * MINUTES:
            if now > 60 * (replaced + 1):
                replaced += 1
                write_other(bundle, tiny_bundle, tiny_dataset, 0.1 * (replaced % 9))
            path, body, expected = chance.choice(REQUESTS)
            client.request("POST", path, body, {"content-type": "application/json"})
            if number % 100 == 0:
                client.close()
            else:
                answer = client.getresponse()
                answer.read()
                statuses[expected, answer.status] += 1
            number += 1
            if number % round(RATE) == 0:
                status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
                memory.append(int(status.split("VmRSS:")[1].split()[0]))
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        client.close()
    assert all(expected == status for expected, status in statuses), statuses
    quarter = len(memory) // 4
    early = statistics.median(memory[quarter : 2 * quarter]) / 1024
    late = statistics.median(memory[-quarter:]) / 1024
    with capsys.disabled():
        print(  # noqa: T201 - its figures
            f"\n{number:,} requests in {MINUTES:g} minutes, {replaced} replaced bundles; memory "
            f"{early:.0f} MiB in the second quarter, {late:.0f} in the last"
        )
    assert late < 1.05 * early
