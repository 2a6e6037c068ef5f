"""What would not fit into the memory is refused with its size, before it is made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from recsys.config import DataConfig, parse_experiment
from recsys.data.memory import check_memory, memory_limit
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.inference.catalogue import Catalogue
from recsys.model.build import build_model
from recsys.model.size import count_weights
from recsys.training.loop import train
from recsys.training.module import TrainingModule


def test_the_limit_is_that_of_this_machine() -> None:
    assert 2**28 < memory_limit() < 2**50
    check_memory(memory_limit() // 2, "the rows", "take fewer")
    message = r"^the rows need 1,048,576\.0 GiB of memory, more than half of the [\d,.]+ there are"
    with pytest.raises(InputError, match=message):
        check_memory(2**50, "the rows", "take fewer")
    check_memory(2**20, "the rows", "take fewer", gpu_memory=2**21)
    with pytest.raises(InputError, match=r"more than half of the 0\.0 of the GPU: take fewer"):
        check_memory(2**20 + 1, "the rows", "take fewer", gpu_memory=2**21)


def test_a_step_that_does_not_fit_into_a_gpu_is_one_line(
    tiny_dataset: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(TrainingModule, "training_step", too_large)
    tree = {"model": {"embedding_dim": 4}, "training": {"batch_tokens": 64, "max_epochs": 1}}
    experiment = parse_experiment(tree)
    catalogue = Catalogue.of(experiment.model, tiny_dataset)
    histories = tiny_dataset.histories("test")
    with pytest.raises(InputError, match=r"memory of the GPU: choose a smaller .* \(64\)"):
        train(experiment, catalogue, histories, None, 1, lambda *_: False)


@pytest.mark.parametrize(
    "model",
    [
        {"embedding_dim": 65_536, "feed_forward_dim": 65_536, "num_blocks": 20},
        {"kind": "hstu", "embedding_dim": 65_536, "num_blocks": 20},
        {"kind": "masked_item", "embedding_dim": 65_536, "num_blocks": 20},
        {"kind": "sequence_to_sequence", "embedding_dim": 65_536, "num_encoder_blocks": 20},
        {
            "head": {"kind": "mixture_of_logits", "components": 1_024, "component_dim": 65_536},
            "embedding_dim": 65_536,
        },
        {
            "positions": "sinusoidal",
            "max_sequence_length": 65_536,
            "embedding_dim": 65_536,
            "num_blocks": 20,
        },
    ],
)
def test_models_are_counted_before_they_are_built(
    model: dict[str, object], tiny_dataset: PreparedDataset
) -> None:
    experiment = parse_experiment({"model": model})
    catalogue = Catalogue.of(experiment.model, tiny_dataset)
    message = r"^model: its [\d,]+ parameters, 1 times in all, need [\d,]+\.\d GiB of memory, more"
    with pytest.raises(InputError, match=message):
        catalogue.new_model(experiment.model, np.ones(6, dtype=np.int64))
    with pytest.raises(InputError, match="5 times in all"):
        train(experiment, catalogue, tiny_dataset.histories("valid"), None, 1, lambda *_: None)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"positions": "rotary", "wide_heads": True, "num_heads": 4},
        {"positions": "sinusoidal", "norm": "gated", "activation": "swiglu"},
        {"positions": "none", "norm": "post"},
        {"kind": "hstu", "times": "past"},
        {"kind": "masked_item"},
        {"kind": "sequence_to_sequence"},
        {"kind": "factorisation_machine"},
        {"head": {"kind": "mixture_of_logits"}},
        {"head": {"kind": "target_attention", "kv_source": "both"}},
    ],
)
def test_the_count_is_nearly_that_of_the_model(model: dict[str, object]) -> None:
    config = parse_experiment({"model": model}).model
    built = build_model(config, 500).state_dict()
    found = sum(weight.numel() for weight in built.values())
    assert 0.85 * found <= count_weights(config, 500, {}) <= found


def test_histories_that_advance_are_counted_first(tmp_path: Path) -> None:
    """One user's histories before each of 200,000 targets have 3e11 items."""
    rows = 2_000_000
    log = pl.DataFrame(
        {"user_id": np.zeros(rows, int), "item_id": np.arange(rows) % 50, "timestamp": range(rows)}
    )
    split = {"kind": "global_time", "targets": "every", "history": "advancing"}
    config = DataConfig.model_validate({"split": split})
    dataset = prepare(log, config, tmp_path / "data")
    message = r"data: the histories of the 200,000 test targets need 8,\d{3}\.\d GiB of memory, .*"
    with pytest.raises(InputError, match=message + r"targets: first\), or freeze them"):
        dataset.holdout("test")
