"""Real processes: killed at any time and restarted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from mlflow import MlflowClient

from recsys.config.data import DataConfig
from recsys.data.prepared import prepare
from recsys.serving.bundle import ModelBundle
from recsys.shop.simulation import make_shop
from tests.faults import commands

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes in /proc"),
]

KILLS = int(os.environ.get("KILLS", "5"))
"""Number of kills; 20 for the recorded result, and each takes seconds."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a prepared dataset; the tests share its MLflow store."""
    folder = tmp_path_factory.mktemp("home")
    log = make_shop(seed=0, num_customers=60).interactions
    prepare(log, DataConfig(duplicates="drop_exact", min_user_interactions=3), folder / "shop")
    return folder


CONFIG = """
name: {name}
model:
  embedding_dim: 8
  feed_forward_dim: 8
  max_sequence_length: 10
  dropout: {dropout}
  head: {{kind: target_attention, head_dim: 4}}
training:
  max_epochs: {epochs}
  patience: {epochs}
  batch_tokens: 150
  learning_rate: 0.01
  refit: true
  precision: float32
  checkpoint_minutes: {minutes}
evaluation: {{seen: allow, cutoffs: [10]}}
"""


def write_config(
    home: Path, name: str, dropout: float, epochs: int, minutes: float = 0.001
) -> None:
    text = CONFIG.format(name=name, dropout=dropout, epochs=epochs, minutes=minutes)
    (home / f"{name}.yaml").write_text(text)


def start(home: Path, name: str) -> subprocess.Popen[str]:
    words = ["train", f"{name}.yaml", "--data", "shop", "--json", "--verbose"]
    return commands.start(home, words, stderr=subprocess.PIPE)


def finish(home: Path, name: str) -> tuple[dict[str, Any], str]:
    """Return the row that the command prints, and its standard error."""
    process = start(home, name)
    out, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    (row,) = json.loads(out)
    return row, log


def history(home: Path, run: str) -> dict[str, list[tuple[int, float]]]:
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    logged = client.get_run(run)
    assert logged.info.status == "FINISHED"
    return {
        name: [(entry.step, entry.value) for entry in client.get_metric_history(run, name)]
        for name in logged.data.metrics
        if not any(word in name for word in ("second", "memory", "peak"))
    }


def weights(home: Path, name: str) -> dict[str, torch.Tensor]:
    return ModelBundle.open(home / "runs" / name / "bundle").model.state_dict()


def test_kills_change_nothing(home: Path) -> None:
    """kill -9 at random times, also while Python starts, data load or a checkpoint is written."""
    for name in ("full", "cut"):
        write_config(home, name, dropout=0.3, epochs=40)
    expected, _ = finish(home, "full")
    chance = random.Random(0)  # noqa: S311 - no secret
    checkpoint, resumed = home / "runs" / "cut.checkpoint", 0
    for _ in range(KILLS):
        process, began = start(home, "cut"), time.monotonic()
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while process.poll() is None and time.monotonic() - began < 60:
            moved = checkpoint.exists() and checkpoint.stat().st_mtime_ns != before
            if moved or chance.random() < 0.0002:
                break
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        resumed += checkpoint.exists()
        commands.kill(process)
    assert resumed >= KILLS // 2
    row, log = finish(home, "cut")
    assert "from the checkpoint, after epoch" in log
    assert row["best_epoch"] == expected["best_epoch"]
    mine, theirs = weights(home, "cut"), weights(home, "full")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    for table in ("ranks_valid", "ranks_test", "topk_test"):
        one, other = (home / "runs" / name / f"{table}.parquet" for name in ("cut", "full"))
        assert pl.read_parquet(one).equals(pl.read_parquet(other))
    assert history(home, row["run"]) == history(home, expected["run"])
    assert not [path for path in (home / "runs").iterdir() if "checkpoint" in path.name]


def test_a_sigterm_saves_a_checkpoint_between_two_steps(home: Path) -> None:
    """The checkpoint is of that moment, not of minutes before."""
    write_config(home, "terminated", dropout=0.3, epochs=400, minutes=60)
    process, checkpoint = start(home, "terminated"), home / "runs" / "terminated.checkpoint"
    while not checkpoint.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, log
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    (run,) = client.search_runs(["1"], "attributes.run_name = 'terminated'")
    assert run.info.status == "KILLED"
