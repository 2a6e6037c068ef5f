"""Strangers' bundles, served folders, requests and programs around an ONNX graph."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import recsys
from recsys.server.service import ServerSettings
from tests.helpers.commands import run
from tests.helpers.logs import log_of
from tests.helpers.running_server import running
from tests.helpers.server_process import ROOT, Process, wait_for

EXAMPLE = ROOT / "docs" / "examples" / "recommend_without_torch.py"
WEIGHTS = "weights.safetensors"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    chance = random.Random(5)  # noqa: S311 - no secret
    rows = [
        (user, 1_000 + min(39, int(chance.expovariate(0.08))), 1_700_000_000 + 3_600 * step)
        for user in range(40)
        for step in range(chance.choice([3, 5, 20]))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("strangers"))
        data = recsys.prepare(log_of(rows), out="data")
        model = {"embedding_dim": 8, "max_sequence_length": 6, "feed_forward_dim": 16}
        training = {"max_epochs": 1, "batch_tokens": 512}
        neural = {"training": training, "evaluation": {"seen": "filter"}}
        experiments: dict[str, Any] = {
            "attention": {"model": model, "count_ensemble": {}, **neural},
            "dot": {"model": {**model, "head": {"kind": "dot_product"}}, **neural},
        }
        return {
            name: recsys.train(
                recsys.Experiment.model_validate({"name": name, **fields}), data, fresh=True
            ).bundle.resolve()
            for name, fields in experiments.items()
        }


def test_a_wrong_request_costs_no_more_than_a_right_one(bundles: dict[str, Path]) -> None:
    right = {"log": [{"item_id": 1_000, "timestamp": 1_700_000_000}] * 5_000}
    wrong: list[dict[str, Any]] = [
        {"history": [1_000] * 10_000, "times": [None] * 10_000},
        {"log": [{"item_id": 1_000, "timestamp": "soon"}]},
        {"log": [{f"column {number}": [] for number in range(40_000)}]},
    ]
    with running(ServerSettings(bundles["dot"])) as server:

        def cost(body: dict[str, Any], expected: int) -> float:
            """The seconds of the processor, at best: the first request compiles patterns."""
            raw, seconds = json.dumps(body).encode(), []
            for _ in range(3):
                began = time.process_time()
                status, answer = server.ask("/v1/recommend", raw=raw)
                seconds.append(time.process_time() - began)
                assert status == expected, answer
            return min(seconds)

        most = 0.05 + 2 * cost(right, 200)
        assert all(cost(body, 422) < most for body in wrong)


@pytest.mark.slow
def test_workers_whose_parent_is_killed_while_they_load_leave_no_trace(
    bundles: dict[str, Path],
) -> None:
    words = ["-m", "recsys", "serve", str(bundles["dot"]), "--workers=2", "--port=0"]
    with subprocess.Popen(
        [sys.executable, *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        wait_for(lambda: len(Process(parent, 0, []).workers()) == 2)
        time.sleep(1)
        parent.kill()
        log = parent.communicate(timeout=60)[1]  # read until the workers have ended too
    assert {json.loads(line)["level"] for line in log.splitlines()} == {"info"}


@pytest.mark.slow
def test_the_onnx_example_recommends_what_the_model_does(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    run("export", bundles["dot"], "--out", tmp_path / "onnx")
    model = recsys.load(bundles["dot"])
    longer = [1_000 + number for number in (13, 19, 7, 17, 1, 6, 12, 4, 2, 3, 0, 11, 5, 15, 10)]
    nearly_all = [*range(1_000, 1_036)]
    for history in (longer, [5], [], [5, 1_001], nearly_all):
        example = subprocess.run(
            [sys.executable, EXAMPLE, tmp_path / "onnx", *map(str, history)],
            capture_output=True,
            text=True,
            check=True,
        )
        items = [int(line.split()[0]) for line in example.stdout.splitlines()]
        assert items == model.recommend([history], k=10)["item_id"].to_list()
        assert not set(items) & set(history)
