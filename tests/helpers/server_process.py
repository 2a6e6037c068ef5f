"""`recsys serve` in a process of its own, for tests."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recsys.data.prepared import PreparedDataset
from recsys.serving.bundle import ModelBundle

ROOT = Path(__file__).parents[2]
ASKED = {"history": ["hat", "boots"], "k": 3}


def write_other(path: Path, like: ModelBundle, dataset: PreparedDataset, shift: float) -> None:
    """Replace a bundle by one whose scores are others."""
    model = ModelBundle.open(like.path).model
    with torch.no_grad():
        model.items.weight[1:] += shift
    ModelBundle.write(path, model, like.experiment, dataset, ("train",))


def wait_for(happened: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


@dataclass
class Process:
    process: subprocess.Popen[str]
    port: int
    log: list[str]

    def ask(self, path: str, body: object) -> int:
        return self.answer(path, body)[0]

    def answer(self, path: str, body: object) -> tuple[int, Any]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = client.getresponse()
        text = response.read()
        client.close()
        return response.status, json.loads(text)

    def workers(self) -> list[int]:
        """The processes that the command started, without the one that tracks their resources."""
        workers = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                words = (folder / "cmdline").read_text()
            except OSError:
                continue  # it has ended
            if parent == self.process.pid and "spawn_main" in words:
                workers.append(int(folder.name))
        return workers


def metrics(port: int) -> dict[str, float]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("GET", "/metrics")
    text = client.getresponse().read().decode()
    client.close()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@contextmanager
def process(*words: object, key: str = "") -> Iterator[Process]:
    """Start the command, wait until it serves, and kill it if the test did not end it."""
    environment = {**os.environ, "RECSYS_API_KEY": key, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "recsys", "serve", *map(str, words), "--port", "0"],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stderr is not None
        first = started.stderr.readline()
        log = [first]
        reader = threading.Thread(target=log.extend, args=[started.stderr])
        try:
            assert first.startswith("{"), first
            serving = json.loads(first)
            assert "port" in serving, first
            reader.start()
            yield Process(started, serving["port"], log)
        finally:
            started.kill()
            if reader.ident is not None:
                reader.join()
