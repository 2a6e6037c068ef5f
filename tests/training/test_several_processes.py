"""Two processes that torchrun starts train what one process trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from recsys.config.data import DataConfig
from recsys.data.prepared import prepare
from recsys.serving.bundle import ModelBundle
from recsys.shop.simulation import make_shop

ROOT = Path(__file__).parents[2]


def train(home: Path, name: str, *words: str) -> tuple[ModelBundle, str]:
    command = ["-m", "recsys", "train", "mine.yaml", "--data", "data", "--set", f"name={name}"]
    command = [sys.executable, *words, *command]
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    result = subprocess.run(
        command, cwd=home, env=os.environ | settings, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-5000:]
    return ModelBundle.open(home / "runs" / name / "bundle"), result.stdout


@pytest.mark.slow
def test_two_processes_train_the_model_of_one(tmp_path: Path) -> None:
    """Batches of odd sizes, some of one row, seen items excluded; a refit in the same processes."""
    log = make_shop(seed=0, num_customers=60).interactions
    prepare(log, DataConfig(duplicates="drop_exact", min_user_interactions=3), tmp_path / "data")
    tree = {
        "name": "mine",
        "model": {"embedding_dim": 8, "num_heads": 2, "feed_forward_dim": 8, "dropout": 0},
        "training": {"max_epochs": 2, "batch_tokens": 300, "precision": "float32", "refit": True},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    alone, shown = train(tmp_path, "alone")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    together, shown_of_two = train(tmp_path, "together", *torchrun)
    assert len(shown_of_two.splitlines()) == len(shown.splitlines())  # the first process alone
    assert not list(tmp_path.glob("runs/*.checkpoint"))
    for name, weight in alone.model.state_dict().items():
        torch.testing.assert_close(
            together.model.state_dict()[name], weight, rtol=1e-3, atol=1e-4, msg=name
        )
