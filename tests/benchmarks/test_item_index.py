"""The ten best of many items by exact search and by an index of faiss, side by side."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from recsys.config.model import DotProduct, NextItemConfig
from recsys.data.histories import Histories
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.inference.ranking import top_k
from recsys.machine import peak_memory_mib, reset_peak_memory
from recsys.model.build import build_model
from recsys.serving.index import IndexedScorer, build_index

SIZES = [int(size) for size in os.environ.get("ITEMS", "100000,1000000").split(",")]
RECALL = float(os.environ.get("RECALL", "0.98"))
LENGTH, WIDTH, K, HISTORIES = 50, 64, 10, 512


@pytest.mark.benchmark
@pytest.mark.parametrize("size", SIZES)
def test_ten_best_by_an_index(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Items in clusters, d 64, 2 blocks with random weights, histories of 50, seen items left out.

    The state of such a model is next to the last item. ITEMS names the sizes, RECALL the recall.
    """
    torch.manual_seed(0)
    config = NextItemConfig(
        embedding_dim=WIDTH, max_sequence_length=LENGTH, head=DotProduct(), dropout=0.0
    )
    model = build_model(config, size)
    with torch.no_grad():
        model.items.weight[1:] = torch.from_numpy(_clustered(size))

    rng = np.random.default_rng(1)
    items = rng.integers(1, size + 1, HISTORIES * LENGTH, dtype=np.int32)
    histories = Histories(items, np.arange(HISTORIES + 1) * LENGTH)
    exact = ModelScorer(model, LENGTH)

    reset_peak_memory()
    before, started = peak_memory_mib()["peak_memory_mib"], time.perf_counter()
    index = build_index(exact.vectors().numpy())
    built = time.perf_counter() - started
    memory = peak_memory_mib()["peak_memory_mib"] - before
    half = HISTORIES // 2
    best, _ = top_k(exact, histories[:half], K, "filter")

    def scorer() -> IndexedScorer:
        """Return a scorer that knows no history yet."""
        encoder = ModelScorer(model, LENGTH, states=StateCache(64 << 20))
        return IndexedScorer(exact, encoder, encoder, index)

    recall = 0.0
    while recall < RECALL and index.nprobe < index.nlist:
        index.nprobe += max(1, index.nprobe // 8)
        found, _ = top_k(scorer(), histories[:half], K, "filter")
        recall = float((best[:, :, None] == found[:, None, :]).any(axis=2).mean())
    with capsys.disabled():
        print(
            f"\n{size:,} items, {torch.get_num_threads()} threads: built in {built:.1f} s with "
            f"{memory:,.0f} MiB above the model; {index.nprobe} of {index.nlist:,} lists "
            f"read for recall@{K} {recall:.3f}"
        )
        for users in (1, 64):
            rounds = []
            for start in range(half, HISTORIES, users):
                rows, fresh = histories[start : start + users], scorer()
                began = time.perf_counter()
                top_k(exact, rows, K, "filter")
                between = time.perf_counter()
                top_k(fresh, rows, K, "filter")
                rounds.append((between - began, time.perf_counter() - between))
            by_all, by_index = 1e3 * np.median(rounds, axis=0) / users
            print(f"  {users:>2} at a time: exact {by_all:.2f} ms a user, index {by_index:.2f} ms")
    assert recall > RECALL - 0.05


def _clustered(count: int) -> NDArray[np.float32]:
    """Vectors in clusters of about a hundred, of different lengths."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((count // 100 + 1, WIDTH), dtype=np.float32)
    found = centres[rng.integers(0, len(centres), count)]
    found += 0.7 * rng.standard_normal((count, WIDTH), dtype=np.float32)
    found *= rng.lognormal(0, 0.2, (count, 1)).astype(np.float32)
    return found
