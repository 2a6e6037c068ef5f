"""Training on a GPU reaches what training on the CPU reaches, on histories with a rule to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.files import parse_experiment
from recsys.data.batches import SequenceBatch
from recsys.data.prepared import PreparedDataset, prepare
from recsys.experiments.fit import fit
from recsys.training.module import TrainingModule
from tests.conftest import chains
from tests.helpers.killed import Killed

DOT, ATTENTION = {"kind": "dot_product"}, {"kind": "target_attention", "head_dim": 16}
MODELS: dict[str, dict[str, Any]] = {
    "dot product": {"head": DOT},
    "target attention, averaged": {"head": {**ATTENTION, "pooling": "average"}},
    "target attention, summed": {"head": {**ATTENTION, "pooling": "sum", "half_life": 3}},
    "gated": {"norm": "gated", "activation": "swiglu", "positions": "rotary", "head": DOT},
    "hstu": {"kind": "hstu", "times": "past", "head": DOT},
    "masked item": {"kind": "masked_item"},
    "sequence to sequence": {"kind": "sequence_to_sequence", "max_generated": 4},
}
SAMPLED: dict[str, Any] = {"kind": "sampled_softmax", "num_negatives": 20}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(300, 12, noise=0.0), out=tmp_path_factory.mktemp("data") / "chains")


def experiment_of(model: dict[str, Any], home: Path, **training: Any) -> Experiment:
    return parse_experiment(
        {
            "name": "chains",
            "model": {"embedding_dim": 32, "max_sequence_length": 12, **model},
            "training": {"learning_rate": 0.01, "batch_tokens": 512, "max_epochs": 25, **training},
            "tracking": TrackingConfig(uri=f"sqlite:///{home}/mlflow.db").model_dump(),
        }
    )


def ndcg(experiment: Experiment, dataset: PreparedDataset, out: Path) -> float:
    return fit(experiment, dataset, out).test["ndcg_at_10"].mean


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    ("model", "training"),
    [
        *[pytest.param(model, {}, id=name) for name, model in MODELS.items()],
        *[
            pytest.param({"head": head}, {"loss": SAMPLED}, id=f"sampled, {head['kind']}")
            for head in (DOT, ATTENTION)
        ],
        pytest.param({"head": DOT}, {"precision": "float32"}, id="dot product, float32"),
    ],
)
def test_a_gpu_reaches_what_the_cpu_reaches(
    model: dict[str, Any],
    training: dict[str, Any],
    dataset: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert torch.cuda.is_available()
    experiment = experiment_of(model, tmp_path, **training)
    on_gpu = ndcg(experiment, dataset, tmp_path / "gpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)  # which Lightning asks
    on_cpu = ndcg(experiment, dataset, tmp_path / "cpu")
    assert on_cpu > 0.6  # the next item is the rule; at random it would be .11
    assert on_gpu == pytest.approx(on_cpu, abs=0.15)


@pytest.mark.gpu
@needs_gpu
def test_a_killed_training_resumes_on_a_gpu(
    dataset: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU the last digits differ from run to run: patience must not count steps by them.
    experiment = experiment_of({"head": ATTENTION}, tmp_path, checkpoint_minutes=0, patience=25)
    step, steps = TrainingModule.training_step, 0

    def counted(self: TrainingModule, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == 40:
            raise Killed
        return step(self, batch, batch_idx)

    monkeypatch.setattr(TrainingModule, "training_step", counted)
    with pytest.raises(Killed):
        fit(experiment, dataset, tmp_path / "killed")
    assert ndcg(experiment, dataset, tmp_path / "killed") > 0.6
    resumed, steps = steps, 40
    fit(experiment, dataset, tmp_path / "whole")
    assert resumed == steps - 40 + 1  # the killed step is the only one that is made twice
