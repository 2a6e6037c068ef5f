"""The precision of a training: measured, and kept by the run."""

from __future__ import annotations

import logging
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.experiments.fit import fit
from recsys.inference.catalogue import Catalogue
from recsys.serving.bundle import ModelBundle
from recsys.training import device
from recsys.training.checkpoints import TrainingState
from recsys.training.device import settle_precision
from recsys.training.loop import train
from tests.helpers.logs import log_of_columns

ITEMS = 30


def make_experiment(*overrides: str) -> Experiment:
    tree = {
        "model": {"embedding_dim": 8, "num_heads": 2, "max_sequence_length": 10},
        "training": {"max_epochs": 2, "learning_rate": 1e-3, "batch_tokens": 200},
        "evaluation": {"seen": "allow", "cutoffs": [10]},
    }
    return parse_experiment(tree, overrides)


def histories() -> Histories:
    rng = np.random.default_rng(0)
    return Histories.from_lists([rng.integers(1, ITEMS + 1, 9).tolist() for _ in range(40)])


def settled(monkeypatch: pytest.MonkeyPatch, share: float, wanted: str = "auto") -> str:
    monkeypatch.setattr(device, "bf16_share", lambda *_: share)
    return settle_precision(make_experiment(f"training.precision={wanted}"))


def test_bf16_is_taken_where_it_is_clearly_faster_or_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="recsys.training.device")
    assert settled(monkeypatch, 0.42) == "bf16"
    assert settled(monkeypatch, 0.95) == "float32"
    assert settled(monkeypatch, 0.1, "float32") == "float32"
    assert settled(monkeypatch, 9.0, "bf16") == "bf16"
    assert caplog.messages == ["precision: bf16", "precision: float32"]


def test_a_resumed_training_keeps_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[TrainingState] = []

    def run(start: TrainingState | None, stop: bool) -> str | None:
        words = make_experiment(), Catalogue(ITEMS), histories(), None, 2, lambda *_: stop
        _, curve = train(*words, start=start, save=lambda state: saved.append(state.copy()))
        return curve.precision

    monkeypatch.setattr(device, "bf16_share", lambda *_: 0.4)
    assert run(None, stop=True) == "bf16"
    monkeypatch.setattr(device, "bf16_share", lambda *_: 9.0)
    assert run(saved[0], stop=False) == "bf16"


@pytest.fixture
def dataset(tmp_path: Path) -> PreparedDataset:
    rng = np.random.default_rng(0)
    log = log_of_columns(np.arange(320) // 8, rng.integers(ITEMS, size=320), np.arange(320))
    return prepare(log, out=tmp_path / "data")


def test_the_refit_and_the_bundle_have_the_precision_of_the_training(
    dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shares = chain([0.4], repeat(9.0))
    monkeypatch.setattr(device, "bf16_share", lambda *_: next(shares))
    caplog.set_level(logging.DEBUG, logger="recsys.training.device")
    store = f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"
    run = fit(make_experiment("training.refit=true", store), dataset, tmp_path / "out")
    assert [said for said in caplog.messages if "precision" in said] == ["precision: bf16"]
    assert ModelBundle.open(run.bundle).experiment.training.precision == "bf16"
    data = MlflowClient(run.tracking.absolute_uri).get_run(run.run_id).data
    assert (data.params["training.precision"], data.tags["precision"]) == ("auto", "bf16")
    assert "precision" not in data.params  # pooled seeds may differ in it
