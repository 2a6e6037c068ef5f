"""What would not fit into the memory is refused with its size, before it is made."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from recsys.config.data import DataConfig
from recsys.config.files import parse_experiment
from recsys.data.database import check_memory, memory_limit
from recsys.data.prepared import prepare
from recsys.errors import InputError
from recsys.inference.catalogue import Catalogue
from recsys.training.checkpoints import TrainingState
from recsys.training.device import gpu_memory
from tests.helpers.logs import log_of_columns


def test_the_limit_is_that_of_this_machine() -> None:
    assert 2**28 < memory_limit() < 2**50
    check_memory(memory_limit() // 2, "the rows", "take fewer")
    message = r"^the rows need 1,048,576\.0 GiB of memory, more than half of the [\d,.]+ there are"
    with pytest.raises(InputError, match=message):
        check_memory(2**50, "the rows", "take fewer")
    check_memory(2**20, "the rows", "take fewer", gpu_memory=2**21)
    with pytest.raises(InputError, match=r"more than half of the 0\.0 free on the GPU: take fewer"):
        check_memory(2**20 + 1, "the rows", "take fewer", gpu_memory=2**21)


def test_the_memory_of_a_gpu_is_what_others_and_this_process_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_memory() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 7)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 3)
    assert gpu_memory() == 14


def test_the_model_of_an_earlier_training_is_released_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is in a circle, as with Lightning's trainer, which only the garbage collector frees."""
    gc.disable()
    try:
        for is_gpu in (False, True):
            model = nn.Linear(2, 2)
            model.trainer = [model]  # type: ignore[assignment]
            alive = weakref.ref(model)
            del model
            monkeypatch.setattr(torch.cuda, "is_available", lambda there=is_gpu: there)
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10, 100))
            gpu_memory()
            assert (alive() is None) == is_gpu
    finally:
        gc.enable()


def test_the_copy_of_a_state_waits_on_the_cpu_and_is_not_changed_with_it() -> None:
    with FakeTensorMode():
        moments = [{0: torch.ones(3, device="cuda")}]
        kept = TrainingState({"w": torch.ones(3, device="cuda"), "moments": moments}).copy()
    assert kept.checkpoint["w"].device.type == "cpu"
    assert kept.checkpoint["moments"][0][0].device.type == "cpu"
    weight, moment = torch.ones(3), torch.ones(3)
    state = TrainingState({"w": weight, "moments": [{0: moment}]})
    kept = state.copy()
    weight.add_(1)
    moment.add_(1)
    state.curve.epochs.append({})
    assert not kept.curve.epochs
    assert kept.checkpoint["w"].tolist() == [1, 1, 1]
    assert kept.checkpoint["moments"][0][0].tolist() == [1, 1, 1]


def test_item_embeddings_are_counted_before_they_are_made() -> None:
    config = parse_experiment({"model": {"embedding_dim": 65_536}}).model
    message = r"^model: the embeddings of its 100,000,000 items, 2 times in all, need [0-9,.]+ GiB"
    with pytest.raises(InputError, match=message):
        Catalogue(100_000_000).check_memory(config, 2)
    with pytest.raises(InputError, match="1 times in all"):
        Catalogue(100_000_000).new_model(config, np.zeros(1, dtype=np.int64))


def test_histories_that_advance_are_counted_first(tmp_path: Path) -> None:
    """One user's histories before each of 200,000 targets have 3e11 items."""
    rows = 2_000_000
    log = log_of_columns(np.zeros(rows, int), np.arange(rows) % 50, np.arange(rows))
    split = {"kind": "global_time", "targets": "every", "history": "advancing"}
    config = DataConfig.model_validate({"split": split})
    dataset = prepare(log, config, tmp_path / "data")
    message = r"data: the histories of the 200,000 test targets need 8,\d{3}\.\d GiB of memory, .*"
    with pytest.raises(InputError, match=message + r"targets: first\), or freeze them"):
        dataset.holdout("test")
