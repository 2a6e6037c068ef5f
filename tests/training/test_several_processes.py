"""Two processes that torchrun starts have the results of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from recsys.config import DataConfig
from recsys.data.prepared import prepare
from recsys.serving.bundle import ModelBundle
from recsys.shop.simulation import make_shop

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def torchrun(*words: str, home: Path) -> None:
    """Run two processes, which find each other on a port that is free."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*command, "--nproc-per-node", "2", *words],
        cwd=home,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",  # a machine may have a single GPU
            "PYTHONPATH": str(ROOT),
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-5000:]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes found; see `two_processes.py`."""
    out = tmp_path_factory.mktemp("two") / "found.json"
    torchrun(str(HERE / "two_processes.py"), str(out), home=out.parent)
    answer: dict[str, Any] = json.loads(out.read_text())
    return answer


@pytest.mark.slow
def test_two_processes_have_the_loss_and_the_gradients_of_one(found: dict[str, Any]) -> None:
    """Seen items excluded; batches of other sizes, one without targets."""
    assert len(found["steps"]) == 8
    for case, differences in found["steps"].items():
        assert differences["loss"] < 1e-5, case
        assert differences["gradient"] < 1e-5, case


@pytest.mark.slow
def test_they_resume_from_a_checkpoint_and_send_no_buffers(found: dict[str, Any]) -> None:
    """Nothing changes the decays of target attention, for one."""
    for training in found["trainings"]:
        assert training == {"buffers_sent": 0, "resumed": pytest.approx(0, abs=1e-6)}


@pytest.mark.slow
def test_processes_leave_and_may_join_again(found: dict[str, Any]) -> None:
    assert found["left"] == {"alone": 1, "first": 1, "again": 2, "sum": 3}


@pytest.mark.slow
def test_the_command_trains_in_two_processes(tmp_path: Path) -> None:
    log = make_shop(seed=0, num_customers=60).interactions
    config = DataConfig(duplicates="drop_exact", min_user_interactions=3)
    dataset = prepare(log, config, tmp_path / "data")
    tree = {
        "name": "two",
        "model": {"embedding_dim": 8, "num_heads": 2, "feed_forward_dim": 8},
        "training": {"max_epochs": 2, "batch_tokens": 300},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    torchrun("-m", "recsys", "train", "mine.yaml", "--data", "data", home=tmp_path)
    assert ModelBundle.open(tmp_path / "runs" / "two" / "bundle").num_items == dataset.num_items
    assert not list(tmp_path.glob("runs/*.checkpoint"))
