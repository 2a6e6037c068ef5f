"""The server under mixed requests at a set rate, for an hour: no failure, and flat memory."""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import socket
import statistics
import time
from collections import Counter
from contextlib import closing
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
    ("/v1/recommend", json.dumps({"history": [], "k": 3}).encode(), 200),
    ("/v1/recommend", json.dumps({"history": ["nothing known"], "k": 3}).encode(), 200),
    ("/v1/score", b'{"history": ["hat"', 400),
    ("/v1/score", json.dumps({**HAT, "candidates": "socks"}).encode(), 422),
    ("/v1/recommend", json.dumps({**HAT, "k": -1}).encode(), 422),
    ("/v1/recommend", b"[" * 100_000, 400),
    ("/v1/recommend", b" " * 2_000_000, 413),
]
"""Paths, bodies, and the status of the answer."""


def resident(process_id: int) -> int:
    """The memory of a process in KiB."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.soak
def test_an_hour_of_mixed_requests_at_a_set_rate(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two requests in a hundred come slowly or leave early; the bundle is replaced each minute."""
    shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    chance = random.Random(0)  # noqa: S311 - no secret
    found: Counter[tuple[int, int]] = Counter()
    memory: list[int] = []
    with process(tmp_path / "bundle") as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        began = time.monotonic()
        number, replaced = 0, 0
        while (now := time.monotonic() - began) < 60 * MINUTES:
            if now > 60 * (replaced + 1):
                replaced += 1
                write_other(tmp_path / "bundle", tiny_bundle, tiny_dataset, 0.1 * (replaced % 9))
            path, body, wanted = chance.choice(REQUESTS)
            if number % 50 == 0:
                rude(server.port, leaves=number % 100 == 0)
            client.request("POST", path, body, {"content-type": "application/json"})
            answer = client.getresponse()
            answer.read()
            found[wanted, answer.status] += 1
            number += 1
            if number % round(RATE) == 0:
                memory.append(resident(server.process.pid))
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        client.close()
    assert all(wanted == status for wanted, status in found), found
    quarter = len(memory) // 4
    early = statistics.median(memory[quarter : 2 * quarter]) / 1024
    late = statistics.median(memory[-quarter:]) / 1024
    with capsys.disabled():
        print(  # noqa: T201 - its figures
            f"\n{number:,} requests in {MINUTES:g} minutes, {replaced} replaced bundles, statuses "
            f"{dict(Counter(status for _, status in found.elements()))}; memory {early:.0f} MiB in "
            f"the second quarter, {late:.0f} in the last"
        )
    assert late < 1.05 * early


def rude(port: int, *, leaves: bool) -> None:
    """Send a request in halves; or only the first, and go."""
    body = json.dumps({**HAT, "k": 3}).encode()
    head = f"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\nConnection: close\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as client:
        client.sendall(head.encode() + body[:5])
        if not leaves:
            time.sleep(0.01)
            client.sendall(body[5:])
            answer = client.recv(100)
            assert b" 200 " in answer, answer
