"""The ten best of 100,000 items for 20,000 users by target attention, in one stage and in two."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch

from recsys.config import NextItemConfig, TargetAttention
from recsys.data.histories import Histories
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import TwoStages, top_k
from recsys.inference.scorer import Scorer
from recsys.machine import peak_memory_mib, reset_peak_memory
from recsys.model.build import build_model
from recsys.model.heads import DotProductHead

ITEMS = int(os.environ.get("ITEMS", "100000"))
USERS = int(os.environ.get("USERS", "20000"))
RETRIEVE = int(os.environ.get("RETRIEVE", "500"))
STAGES = os.environ.get("STAGES", "two,one").split(",")
LENGTH, K = 50, 10


@pytest.mark.benchmark
def test_ten_best_in_two_stages(capsys: pytest.CaptureFixture[str]) -> None:
    """Random weights, d 64, 2 blocks, histories of 50, seen items left out, on one thread.

    USERS, ITEMS and RETRIEVE size it; STAGES names one of the two.
    """
    torch.manual_seed(0)
    config = NextItemConfig(embedding_dim=64, max_sequence_length=LENGTH, head=TargetAttention())
    model = build_model(config, ITEMS)
    ranker = ModelScorer(model, LENGTH)
    retriever = ModelScorer(model, LENGTH, DotProductHead())
    scorers: dict[str, Scorer] = {
        "one": ranker,
        "two": TwoStages(retriever, ranker, RETRIEVE, "filter"),
    }
    rng = np.random.default_rng(0)
    items = rng.integers(1, ITEMS + 1, USERS * LENGTH, dtype=np.int32)
    histories = Histories(items, np.arange(USERS + 1) * LENGTH)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for stages in STAGES:
        reset_peak_memory()
        before = peak_memory_mib()["peak_memory_mib"]
        started, worked = time.perf_counter(), time.process_time()
        best, _ = top_k(scorers[stages], histories, K, "filter")
        seconds, work = time.perf_counter() - started, time.process_time() - worked
        above = peak_memory_mib()["peak_memory_mib"] - before
        assert best.shape == (USERS, K)
        with capsys.disabled():
            print(
                f"\n{USERS:,} users, {ITEMS:,} items, stages: {stages}, N {RETRIEVE}: "
                f"{seconds:.1f} s ({work:.1f} s of the processor), "
                f"{above:,.0f} MiB above the model",
                end="",
            )
    torch.set_num_threads(threads)
