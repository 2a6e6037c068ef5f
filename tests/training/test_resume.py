"""Interrupted runs resume with the same result as uninterrupted ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
import torch
from mlflow import MlflowClient
from safetensors import safe_open

from recsys.config.data import DataConfig
from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.batches import SequenceBatch
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.experiments.fit import fit
from recsys.experiments.results import Run
from recsys.serving.bundle import ModelBundle
from recsys.shop.simulation import make_shop
from recsys.tracking.tracker import Tracker
from recsys.training.epochs import EpochRecorder
from recsys.training.module import TrainingModule
from tests.helpers.killed import Killed, killed

MODELS: dict[str, dict[str, Any]] = {
    "next_item": {"feed_forward_dim": 8, "head": {"kind": "target_attention", "head_dim": 4}},
    "masked_item": {"feed_forward_dim": 8, "kind": "masked_item"},
    "sequence_to_sequence": {
        "feed_forward_dim": 8,
        "kind": "sequence_to_sequence",
        "max_generated": 4,
    },
    "averaged": {"feed_forward_dim": 8},
    "with times": {"kind": "hstu", "times": "past"},
    "with features": {
        "kind": "hstu",
        "interaction_features": [{"kind": "number", "column": "rating"}],
        "user_features": ["group"],
    },
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    log = make_shop(seed=0, num_customers=60).interactions
    log = log.with_columns(rating=pl.int_range(pl.len()) % 5)
    users = log.select(pl.col("user_id").unique().sort()).with_columns(
        group=pl.int_range(pl.len()) % 2
    )
    config = DataConfig(duplicates="drop_exact", min_user_interactions=3, keep=("rating",))
    return prepare(log, config, tmp_path_factory.mktemp("data") / "shop", users=users)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that all tests share: creating one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


def make_experiment(store: str, out: Path, model: str, *overrides: str) -> Experiment:
    tree = {
        "name": "run",
        "model": {
            "embedding_dim": 8,
            "num_heads": 2,
            "max_sequence_length": 10,
            "dropout": 0.3,
            **MODELS[model],
        },
        "training": {
            "max_epochs": 3,
            "batch_tokens": 150,
            "refit": True,
            "learning_rate": 0.01,
            "checkpoint_minutes": 0,
        },
        "evaluation": {"seen": "allow", "cutoffs": [10]},
        "tracking": {"uri": store, "experiment": str(out)},
    }
    return parse_experiment(tree, overrides)


def outcome(run: Run) -> tuple[dict[str, torch.Tensor], list[pl.DataFrame], dict[str, Any]]:
    folder = run.bundle.parent
    tables = [pl.read_parquet(path) for path in sorted(folder.glob("*.parquet"))]
    client = MlflowClient(run.tracking.absolute_uri)
    logged = client.get_run(run.run_id)
    assert logged.info.status == "FINISHED"
    history = {
        name: [
            (metric.step, metric.value) for metric in client.get_metric_history(run.run_id, name)
        ]
        for name in logged.data.metrics
        if not any(word in name for word in ("second", "memory", "peak"))
    }
    return ModelBundle.open(run.bundle).model.state_dict(), tables, history


def assert_same(run: Run, expected: Run) -> None:
    weights, tables, history = outcome(run)
    same_weights, same_tables, same_history = outcome(expected)
    assert all(torch.equal(weights[name], same_weights[name]) for name in same_weights)
    assert all(a.equals(b) for a, b in zip(tables, same_tables, strict=True))
    assert history == same_history


def count_steps(run: Callable[[], Run]) -> tuple[Run, int]:
    steps = 0
    train = TrainingModule.training_step

    def counted(self: TrainingModule, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return train(self, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingModule, "training_step", counted)
        return run(), steps


@pytest.mark.slow
@pytest.mark.parametrize("minutes", [0, 60])
@pytest.mark.parametrize("model", MODELS)
def test_a_killed_run_resumes_with_the_result_of_an_uninterrupted_one(
    model: str, minutes: int, dataset: PreparedDataset, store: str, tmp_path: Path
) -> None:
    """Killed three times, in training and refit; checkpoints after every step, or every epoch."""
    settings = [f"training.checkpoint_minutes={minutes}"]
    if model == "averaged":
        settings += ["training.average_weights=true", "training.decay_fraction=0"]
        settings += ["training.soft_labels=.5"]  # drawn by the random state that is saved
    full, cut = tmp_path / "full", tmp_path / "cut"
    experiment = make_experiment(store, full, model, *settings)
    expected, steps = count_steps(lambda: fit(experiment, dataset, full))
    experiment = make_experiment(store, cut, model, *settings)
    for part in (0.3, 0.35, 0.2) if minutes == 0 else (0.3, 0.45, 0.4):
        killed(lambda: fit(experiment, dataset, cut), int(part * steps))
        assert not cut.exists()
    run = fit(experiment, dataset, cut)
    assert_same(run, expected)
    client = MlflowClient(store)
    known = client.get_experiment_by_name(str(cut))
    assert known is not None
    assert len(client.search_runs([known.experiment_id])) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"full", "cut"}


@pytest.mark.slow
def test_killed_during_an_early_decay(dataset: PreparedDataset, store: str, tmp_path: Path) -> None:
    settings = (
        "training.max_epochs=20",
        "training.patience=1",
        "training.decay_fraction=0.3",
        "training.refit=false",
    )
    full, cut = tmp_path / "full", tmp_path / "cut"
    experiment = make_experiment(store, full, "next_item", *settings)
    expected, steps = count_steps(lambda: fit(experiment, dataset, full))
    experiment = make_experiment(store, cut, "next_item", *settings)
    killed(lambda: fit(experiment, dataset, cut), steps - 2)
    with safe_open(f"{cut}.checkpoint", framework="numpy") as file:
        header = json.loads(file.metadata()["recsys.training"])
    assert header["curve"]["early_decay"][0] <= len(header["curve"]["epochs"]) < 20
    assert_same(fit(experiment, dataset, cut), expected)


@pytest.mark.slow
def test_killed_in_a_validation(
    dataset: PreparedDataset, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state is saved between the last step of an epoch and its validation, which is repeated."""
    full, cut = tmp_path / "full", tmp_path / "cut"
    expected = fit(make_experiment(store, full, "next_item"), dataset, full)
    experiment = make_experiment(store, cut, "next_item")

    def die(self: EpochRecorder, epoch: int, metrics: dict[str, float]) -> None:
        if epoch == 2:
            raise Killed
        validate(self, epoch, metrics)

    validate = EpochRecorder._keep_if_best
    with monkeypatch.context() as patch:
        patch.setattr(EpochRecorder, "_keep_if_best", die)
        with pytest.raises(Killed):
            fit(experiment, dataset, cut)
    assert_same(fit(experiment, dataset, cut), expected)


@pytest.mark.slow
def test_killed_between_the_last_step_and_the_end(
    dataset: PreparedDataset, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, cut = tmp_path / "full", tmp_path / "cut"
    expected = fit(make_experiment(store, full, "next_item"), dataset, full)
    experiment = make_experiment(store, cut, "next_item")

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "end", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            fit(experiment, dataset, cut)
    run, steps = count_steps(lambda: fit(experiment, dataset, cut))
    assert steps == 0
    assert_same(run, expected)


@pytest.mark.slow
def test_a_checkpoint_of_other_settings_is_not_lost(
    dataset: PreparedDataset, store: str, tmp_path: Path
) -> None:
    out, file = tmp_path / "out", tmp_path / "out.checkpoint"
    experiment = make_experiment(store, out, "next_item")
    killed(lambda: fit(experiment, dataset, out), 5)
    saved = file.read_bytes()
    other = make_experiment(store, out, "next_item", "training.learning_rate=0.02")
    message = (
        r"out\.checkpoint: belongs to an interrupted run with training\.learning_rate=0\.01, not 0"
    )
    with pytest.raises(InputError, match=message):
        fit(other, dataset, out)
    assert file.read_bytes() == saved
    fresh = fit(other, dataset, out, fresh=True)
    assert not file.exists()
    again = make_experiment(store, tmp_path / "again", "next_item", "training.learning_rate=0.02")
    assert_same(fresh, fit(again, dataset, tmp_path / "again"))


def test_a_file_that_is_no_checkpoint_is_named(
    dataset: PreparedDataset, store: str, tmp_path: Path
) -> None:
    (tmp_path / "out.checkpoint").write_bytes(b"half a file")
    with pytest.raises(InputError, match=r"out\.checkpoint: cannot be read as a checkpoint"):
        fit(make_experiment(store, tmp_path, "next_item"), dataset, tmp_path / "out")
