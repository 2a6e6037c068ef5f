"""A catalogue divided over two processes: the results of one that is not divided."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from recsys.config import DataConfig, parse_experiment
from recsys.data.prepared import prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables import evaluate
from recsys.inference.model_scorer import ModelScorer
from recsys.model.divided_items import DividedItemEmbeddings
from recsys.model.division import Division
from recsys.serving.bundle import ModelBundle
from recsys.shop.simulation import make_shop
from recsys.training.state import random_state, restore_random

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
    """What two processes found; see `divided_process.py`."""
    out = tmp_path_factory.mktemp("two") / "found.json"
    torchrun(str(HERE / "divided_process.py"), str(out), home=out.parent)
    answer: dict[str, Any] = json.loads(out.read_text())
    return answer


@pytest.mark.slow
def test_two_processes_have_the_loss_and_the_gradients_of_one(found: dict[str, Any]) -> None:
    """For all heads and losses, seen items excluded; batches of other sizes, one without targets.

    With sampled negatives those of two processes that are not divided, too.
    """
    assert len(found["steps"]) == 18
    for case, differences in found["steps"].items():
        assert differences["start"] == 0, case
        assert differences["loss"] < 1e-5, case
        assert differences["gradient"] < 1e-5, case


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dot_product", "target_attention", "sampled"])
def test_a_divided_training_ends_as_an_undivided_one(case: str, found: dict[str, Any]) -> None:
    """AdamW moves a weight with a tiny gradient as far as any other, and rounding decides where."""
    training = found["trainings"][case]
    assert training["weights"] < 1e-3
    for name in ("train/loss", "epoch/valid_ndcg_at_10"):
        assert len(training["epochs"]) == 3
        for epoch, other in zip(training["epochs"], training["expected"], strict=True):
            assert epoch[name] == pytest.approx(other[name], abs=1e-5)
    assert training["alone"] == pytest.approx(training["best"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["resumed", "resumed undivided"])
@pytest.mark.parametrize("case", ["dot_product", "target_attention", "sampled"])
def test_it_resumes_from_an_ordinary_checkpoint(case: str, how: str, found: dict[str, Any]) -> None:
    training = found["trainings"][case]
    resumed = training[how]
    assert resumed["weights"] < (1e-6 if how == "resumed" else 1e-3)
    for epoch, other in zip(resumed["epochs"], training["epochs"], strict=True):
        assert epoch["train/loss"] == pytest.approx(other["train/loss"], abs=1e-5)


@pytest.mark.slow
def test_each_process_holds_half_of_the_table_its_gradient_and_its_moments(
    found: dict[str, Any],
) -> None:
    """Of 39 rows of 8 numbers, the first process holds 19."""
    held = found["trainings"]["dot_product"]["bytes"]
    assert held == {"undivided": 39 * 8 * 4 * 4, "divided": 19 * 8 * 4 * 4}


@pytest.mark.slow
def test_no_step_sends_what_nothing_changes(found: dict[str, Any]) -> None:
    """The decays of target attention, for one."""
    assert found["trainings"]["target_attention"]["buffers_sent"] == 0


@pytest.mark.slow
def test_processes_leave_and_may_join_again(found: dict[str, Any]) -> None:
    assert found["left"] == {"alone": 1, "first": 1, "again": 2, "sum": 3}


@pytest.mark.slow
def test_the_command_trains_and_its_bundle_scores_in_one_process(tmp_path: Path) -> None:
    """The validation metric is that of the bundle, and of a training that is not divided."""
    log = make_shop(seed=0, num_customers=60).interactions
    config = DataConfig(duplicates="drop_exact", min_user_interactions=3)
    dataset = prepare(log, config, tmp_path / "data")
    tree = {
        "name": "divided",
        "model": {
            "embedding_dim": 8,
            "num_heads": 2,
            "feed_forward_dim": 8,
            "max_sequence_length": 10,
            "dropout": 0.0,
        },
        "training": {
            "max_epochs": 2,
            "batch_tokens": 300,
            "precision": "float32",
            "divide_catalogue": True,
        },
        "evaluation": {"seen": "allow", "cutoffs": [10]},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    train = ("-m", "recsys", "train", "mine.yaml", "--data", "data")
    torchrun(*train, home=tmp_path)
    torchrun(
        *train,
        *("--set", "name=plain", "--set", "training.divide_catalogue=false"),
        home=tmp_path,
    )
    target = HeldOutParts.find(dataset, "unknown").valid
    metrics = []
    for name in ("divided", "plain"):
        bundle = ModelBundle.open(tmp_path / "runs" / name / "bundle")
        assert bundle.trained is not None
        table = evaluate(ModelScorer(bundle.trained, 10), target, "valid", "allow")
        metrics.append(float(table.values("ndcg_at_10").mean()))
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-6)
    assert not list(tmp_path.glob("runs/*.checkpoint"))


@pytest.mark.parametrize("rows", [5, 65_536, 70_001, 200_001])
def test_the_rows_are_drawn_as_if_there_were_one_table(rows: int) -> None:
    torch.manual_seed(0)
    whole = nn.Embedding(rows, 3)
    nn.init.normal_(whole.weight, std=0.02)
    after = torch.rand(1)
    parts = []
    for index in range(3):
        torch.manual_seed(0)
        items = DividedItemEmbeddings(Division(rows - 1, index, 3), 3)
        items.draw(std=0.02)
        assert torch.equal(torch.rand(1), after)
        parts.append(items.weight.detach())
    drawn = torch.cat(parts)
    assert torch.equal(drawn[1:], whole.weight.detach()[1:])
    assert not drawn[0].any()


def test_the_random_state_of_a_second_process_is_restored() -> None:
    """Its row of the states of all processes begins within the memory of the tensor."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        states = torch.stack([torch.zeros_like(random_state()), random_state()])
        drawn = torch.rand(3)
        restore_random(states[1])
        assert torch.equal(torch.rand(3), drawn)


def test_there_is_a_row_for_each_process() -> None:
    assert Division(num_items=2, index=0, count=3).sizes == [1, 1, 1]
    with pytest.raises(InputError, match="2 items cannot be divided over 4 processes"):
        Division(num_items=2, index=0, count=4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model={kind: masked_item}", "not supported by the model masked_item"),
        ("model={kind: factorisation_machine}", "not supported by the model factorisation"),
        ("model={item_features: [brand]}", "not supported with model.item_features"),
        ("start={bundle: runs/old}", "not supported by a training that starts from a model"),
    ],
)
def test_what_cannot_be_divided_is_refused(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        parse_experiment({}, [override, "training.divide_catalogue=true"])
    assert "\n" not in str(error.value)
