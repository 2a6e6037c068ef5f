"""Single requests on loopback: ours, and a plain FastAPI that answers one request after the other.

BENCH_SECONDS (10) for each number of clients; BENCH_CLIENTS, such as 1,8; BENCH_ITEMS (3416), the
size of the catalogue; BENCH_LONGEST (200), the length of histories; BENCH_CANDIDATES (500);
BENCH_THREADS, those of torch in our server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from contest import from_environment
from http_load import Load, measure

from recsys.config import Experiment, NextItemConfig, TargetAttention
from recsys.data.prepared import prepare
from recsys.model.build import build_model
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender

SIDES = Path(__file__).parent / "sides"
PLAIN = [sys.executable, str(SIDES / "plain_fastapi.py")]
OURS = [sys.executable, "-m", "recsys", "serve"]
# A third side, `mlflow models serve` of the same model, belongs here once there is a pyfunc.


@dataclass(frozen=True)
class Question:
    """A path, and bodies that are asked in turn."""

    path: str
    bodies: list[bytes]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    """Target attention with random weights: speed does not depend on them."""
    folder, items = tmp_path_factory.mktemp("serving"), round(from_environment("ITEMS", 3_416))
    rng = np.random.default_rng(0)
    everyone = rng.permutation(items)
    users = np.arange(items) // 20
    log = pl.DataFrame({"user_id": users, "item_id": everyone, "timestamp": np.arange(items)})
    more = log.with_columns(user_id=pl.col("user_id") + items)  # held-out items are known to others
    dataset = prepare(pl.concat([log, more.reverse()]), out=folder / "data")
    torch.manual_seed(0)
    longest = round(from_environment("LONGEST", 200))
    config = NextItemConfig(max_sequence_length=longest, head=TargetAttention())
    experiment = Experiment(model=config)
    model = build_model(config, dataset.num_items)
    return ModelBundle.write(folder / "bundle", model, experiment, dataset, ("train",))


def questions(bundle: ModelBundle) -> Iterator[tuple[str, Question]]:
    """The ten best of the catalogue, and the scores of 500 candidates, for histories of 200."""
    rng = np.random.default_rng(1)
    ids = bundle.vocabulary.ids.to_numpy()
    longest = bundle.experiment.model.max_sequence_length
    count = min(round(from_environment("CANDIDATES", 500)), len(ids))

    def some(number: int) -> list[int]:
        return [int(one) for one in rng.choice(ids, number)]

    top = [{"history": some(longest), "k": 10, "seen": "allow"} for _ in range(200)]
    scored = [{"history": some(longest), "candidates": some(count)} for _ in range(200)]
    for name, path, bodies in (
        (f"top ten of {len(ids):,}", "/v1/recommend", top),
        (f"{count} candidates", "/v1/score", scored),
    ):
        yield name, Question(path, [json.dumps(body).encode() for body in bodies])


@contextmanager
def started(command: list[str], bundle: ModelBundle) -> Iterator[int]:
    """Start a server, and yield its port, which its first line names."""
    words = [*command, str(bundle.path), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        try:
            yield json.loads(server.stderr.readline())["port"]
        finally:
            server.kill()
            server.stderr.read()


@pytest.mark.benchmark
def test_single_requests(bundle: ModelBundle, capsys: pytest.CaptureFixture[str]) -> None:
    """Each side alone on the machine, in turn; half of a second is not counted."""
    seconds = from_environment("SECONDS", 10)
    threads = os.environ.get("BENCH_THREADS")
    clients = [int(one) for one in os.environ.get("BENCH_CLIENTS", "1,8,32,128").split(",")]
    for name, question in questions(bundle):
        for number in clients:
            ours = OURS + (["--threads", threads] if threads else [])
            for side, command in (("ours", ours), ("plain FastAPI", PLAIN)):
                with started(command, bundle) as port:
                    load = measure(port, question.path, question.bodies, number, seconds)
                with capsys.disabled():
                    show(name, side, number, load)
                assert load.failed == 0
                check(bundle, question, load)


def show(name: str, side: str, clients: int, load: Load) -> None:
    p50, p95, p99 = np.percentile(np.array(load.milliseconds), [50, 95, 99])
    print(
        f"\n{name}, {clients} clients, {side}: {len(load.milliseconds) / load.seconds:,.0f} "
        f"requests/s, p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms",
        end="",
    )


def check(bundle: ModelBundle, question: Question, load: Load) -> None:
    """The first answer is that of Python."""
    body, answer = json.loads(question.bodies[0]), json.loads(load.first)
    model = Recommender(bundle)
    if question.path == "/v1/recommend":
        expected = model.recommend([body["history"]], k=10, seen="allow")
    else:
        expected = model.score([body["history"]], body["candidates"])
    assert [row["item_id"] for row in answer["items"]] == expected["item_id"].to_list()
    scores = [row["score"] for row in answer["items"]]
    assert scores == pytest.approx(expected["score"].to_list(), abs=1e-4)
