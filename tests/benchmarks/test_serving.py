"""Single requests on loopback: ours beside `mlflow models serve` and a plain FastAPI.

    python -m pytest -m benchmark tests/benchmarks/test_serving.py -s

prints a line for each question, side and number of clients; it takes under ten minutes. Each side
is alone on the machine, beside the clients, which are one more process. The sides of ours keep no
states, so that each request costs a pass of the encoder, except those of known users. Two stages
rank 200 items by target attention, the best by the dot product.

BENCH_SECONDS (4) for each number of clients; BENCH_CLIENTS (1,8,32,128); BENCH_ITEMS (3416) and
BENCH_LARGE (1000000), the sizes of the catalogues, 0 for none; BENCH_LONGEST (200), the length of
histories; BENCH_CANDIDATES (500); BENCH_SIDES, names of sides, separated by semicolons (all).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import polars as pl
import pytest
import torch
from contest import from_environment
from http_load import Load, measure

from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.model import DotProduct, NextItemConfig, TargetAttention
from recsys.data.prepared import prepare
from recsys.experiments.results import register
from recsys.loading import bundle_folder
from recsys.machine import usable_processors
from recsys.model.build import build_model
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender

ROOT = Path(__file__).parents[2]
OURS = [sys.executable, "-m", "recsys", "serve"]
NO_STATES = ["--cache", "0"]
TWO_STAGES = ["--retrieve", "200"]
SIDES: dict[str, list[str]] = {
    "ours": OURS + NO_STATES,
    "all cores": [*OURS, *NO_STATES, "--threads", str(usable_processors())],
    "workers": [*OURS, *NO_STATES, "--workers", str(usable_processors())],
    "two stages, workers": [*OURS, *NO_STATES, *TWO_STAGES, "--workers", str(usable_processors())],
    "known users": OURS,
    "known users, workers": [*OURS, "--workers", str(usable_processors())],
    "known users, two stages, workers": [*OURS, *TWO_STAGES, "--workers", str(usable_processors())],
    "plain FastAPI": [sys.executable, str(Path(__file__).parent / "sides" / "plain_fastapi.py")],
    "mlflow": [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local", "-m"],
}
READY = 240
"""Seconds that a side has to start."""


@dataclass(frozen=True)
class Question:
    """What is asked of one model, in turn."""

    name: str
    bodies: list[dict[str, Any]] = field(repr=False)

    @property
    def path(self) -> str:
        return "/v1/score" if "candidates" in self.bodies[0] else "/v1/recommend"

    def requests(self, side: str) -> tuple[str, list[bytes]]:
        """The path and the bodies, in the form that a side reads."""
        if side != "mlflow":
            return self.path, [json.dumps(body).encode() for body in self.bodies]
        return "/invocations", [json.dumps(for_mlflow(body)).encode() for body in self.bodies]


def for_mlflow(body: dict[str, Any]) -> dict[str, Any]:
    row = {"items": body["history"]}
    if "candidates" in body:
        return {"dataframe_records": [row | {"candidates": body["candidates"]}]}
    return {"dataframe_records": [row], "params": {"k": body["k"], "seen": body["seen"]}}


def make_bundle(folder: Path, items: int, head: TargetAttention | DotProduct) -> ModelBundle:
    """Random weights: speed does not depend on them."""
    rng = np.random.default_rng(0)
    everyone = rng.permutation(items)
    users = np.arange(items) // 20
    log = pl.DataFrame({"user_id": users, "item_id": everyone, "timestamp": np.arange(items)})
    more = log.with_columns(user_id=pl.col("user_id") + items)  # held-out items are known to others
    dataset = prepare(pl.concat([log, more.reverse()]), out=folder / "data")
    torch.manual_seed(0)
    longest = round(from_environment("LONGEST", 200))
    config = NextItemConfig(max_sequence_length=longest, embedding_dim=128, head=head)
    model = build_model(config, dataset.num_items)
    return ModelBundle.write(
        folder / "bundle", model, Experiment(model=config), dataset, ("train",)
    )


def questions(bundle: ModelBundle, *, scores: bool) -> Iterator[Question]:
    """The ten best of the catalogue; and the scores of some candidates."""
    rng = np.random.default_rng(1)
    ids = bundle.vocabulary.ids.to_numpy()
    longest = bundle.experiment.model.max_sequence_length
    count = min(round(from_environment("CANDIDATES", 500)), len(ids))

    def some(number: int) -> list[int]:
        return [int(one) for one in rng.choice(ids, number)]

    top = [{"history": some(longest), "k": 10, "seen": "allow"} for _ in range(200)]
    yield Question(f"top ten of {len(ids):,}", top)
    if scores:
        scored = [{"history": some(longest), "candidates": some(count)} for _ in range(200)]
        yield Question(f"{count} candidates", scored)


@contextmanager
def started(side: str, folder: Path) -> Iterator[int]:
    """Start a server in a session of its own, and yield its port once it answers."""
    port = free_port()
    words = [*SIDES[side], str(folder), "--port", str(port)]
    search = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": search}
    server = subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + READY
        while not answers(port, "/ping" if side == "mlflow" else "/openapi.json"):
            assert server.poll() is None, f"{side} ended with status {server.returncode}"
            assert time.monotonic() < until, f"{side} did not start in {READY} s"
            time.sleep(0.2)
        yield port
    finally:
        if server.poll() is None:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(port: int, path: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def folder_for(side: str, bundle: ModelBundle, store: Path) -> Path:
    """The folder that a side opens: MLflow needs a logged model."""
    if side != "mlflow":
        return bundle.path
    tracking = TrackingConfig(uri=f"sqlite:///{store / 'mlflow.db'}")
    name = f"speed-{bundle.num_items}"
    # The model's folder has the bundle as data/bundle.
    return bundle_folder(register(bundle.path, name, tracking=tracking).uri, tracking).parents[1]


def chosen_sides() -> list[str]:
    named = os.environ.get("BENCH_SIDES")
    return list(SIDES) if named is None else named.split(";")


@pytest.mark.benchmark
def test_single_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each side alone on the machine, in turn; half of a second is not counted."""
    small, large = (
        round(from_environment(*one)) for one in (("ITEMS", 3_416), ("LARGE", 1_000_000))
    )
    asked: list[tuple[ModelBundle, list[Question]]] = []
    if small:
        bundle = make_bundle(tmp_path / "small", small, TargetAttention())
        asked.append((bundle, list(questions(bundle, scores=True))))
    if large:
        bundle = make_bundle(tmp_path / "large", large, DotProduct())
        asked.append((bundle, list(questions(bundle, scores=False))))
    with capsys.disabled():
        print(f"\n{'question':<22}{'side':<33}{'clients':>8}{'requests/s':>12}", end="")
        print(f"{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}", flush=True)
    for bundle, about in asked:
        for side in chosen_sides():
            if "two stages" in side and bundle.experiment.family != "target_attention":
                continue
            with started(side, folder_for(side, bundle, tmp_path)) as port:
                for question in about:
                    loads = list(measured(question, side, port))
                    with capsys.disabled():
                        for clients, load in loads:
                            show(question.name, side, clients, load)
                    check(bundle, question, side, [load for _, load in loads])


def measured(question: Question, side: str, port: int) -> Iterator[tuple[int, Load]]:
    seconds = from_environment("SECONDS", 4)
    path, bodies = question.requests(side)
    for clients in os.environ.get("BENCH_CLIENTS", "1,8,32,128").split(","):
        yield int(clients), measure(port, path, bodies, int(clients), seconds)


def show(question: str, side: str, clients: int, load: Load) -> None:
    if not load.milliseconds:
        print(f"{question:<22}{side:<33}{clients:>8}   none answered in {load.seconds:.0f} s")
        return
    times = np.percentile(np.array(load.milliseconds), [50, 95, 99])
    rate = len(load.milliseconds) / load.seconds
    print(f"{question:<22}{side:<33}{clients:>8}{rate:>12,.1f}", end="")
    print("".join(f"{one:>9.1f}" for one in times), flush=True)


def check(bundle: ModelBundle, question: Question, side: str, loads: Sequence[Load]) -> None:
    """Every request was answered; the first answer is that of Python."""
    assert sum(load.failed for load in loads) == 0
    body = question.bodies[0]
    model = Recommender(bundle)
    if "candidates" in body:
        expected = model.score([body["history"]], body["candidates"])
    else:
        expected = model.recommend([body["history"]], k=10, seen="allow")
    answer = json.loads(loads[0].first)
    if side == "mlflow":
        (found,) = answer["predictions"]
        items, scores = found["item_id"], found["score"]
    else:
        items = [row["item_id"] for row in answer["items"]]
        scores = [row["score"] for row in answer["items"]]
    assert items == expected["item_id"].to_list()
    assert scores == pytest.approx(expected["score"].to_list(), abs=1e-4)
