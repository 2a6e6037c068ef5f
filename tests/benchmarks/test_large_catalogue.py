"""The ten best of a million items for 20,000 users, with random weights: time and memory."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch

from recsys.config import DotProduct, NextItemConfig
from recsys.data.histories import Histories
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import top_k
from recsys.machine import peak_memory_mib, reset_peak_memory
from recsys.model.build import build_model

ITEMS = int(os.environ.get("ITEMS", "1000000"))
USERS = int(os.environ.get("USERS", "20000"))
LENGTH, K = 50, 10


@pytest.mark.benchmark
def test_ten_best_of_a_million(capsys: pytest.CaptureFixture[str]) -> None:
    """d 64, 2 blocks, histories of 50, seen items left out; USERS and ITEMS size it."""
    torch.manual_seed(0)
    config = NextItemConfig(embedding_dim=64, max_sequence_length=LENGTH, head=DotProduct())
    scorer = ModelScorer(build_model(config, ITEMS), LENGTH)
    rng = np.random.default_rng(0)
    items = rng.integers(1, ITEMS + 1, USERS * LENGTH, dtype=np.int32)
    histories = Histories(items, np.arange(USERS + 1) * LENGTH)
    reset_peak_memory()
    before = peak_memory_mib()["peak_memory_mib"]
    started = time.perf_counter()
    best, _ = top_k(scorer, histories, K, "filter")
    seconds = time.perf_counter() - started
    above = peak_memory_mib()["peak_memory_mib"] - before
    assert best.shape == (USERS, K)
    with capsys.disabled():
        print(
            f"\n{USERS:,} users, {ITEMS:,} items, {torch.get_num_threads()} threads: "
            f"{seconds:.1f} s, {USERS / seconds:,.0f} users/s, {above:,.0f} MiB above the model",
            end="",
        )
