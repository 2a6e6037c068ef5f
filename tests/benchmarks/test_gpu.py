"""Training on a GPU: tokens per second, MFU, peak memory.

    python -m pytest tests/benchmarks/test_gpu.py -m benchmark

on a machine with a GPU; write the figures into docs/lab-log.md, with the GPU's name.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import config_path

from recsys.config.files import load_experiment
from recsys.data.histories import Histories
from recsys.inference.catalogue import Catalogue
from tests.benchmarks.step_costs import measure_steps

STEPS = 20


def like_ml_1m(items: int) -> Histories:
    """6,040 users with 165 interactions on average, some items far more popular than others."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.6, 0.95, 6_040), 20, 2_000).astype(np.int64)
    tokens = (rng.random(int(lengths.sum())) ** 3 * items).astype(np.int32) + 1
    return Histories(tokens, np.concatenate([[0], np.cumsum(lengths)]))


@pytest.mark.benchmark
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("items", [3_416, 100_000, 1_000_000])
@pytest.mark.parametrize("head", ["dot product", "target attention"])
def test_training_on_a_gpu(head: str, items: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The config of MovieLens-1M, in the shape of its log."""
    experiment = load_experiment(config_path("ml-1m", head))
    found = measure_steps(experiment, Catalogue(items), like_ml_1m(items), STEPS)
    with capsys.disabled():
        print(
            f"\n{torch.cuda.get_device_name()}, {head}, {items:,} items, {found.precision}: "
            f"{found.tokens_per_second:,.0f} tokens/s, MFU {found.peak_share:.1%}, "
            f"{found.memory_mib}, milliseconds a step: "
            f"{ {part: round(1e3 * seconds, 2) for part, seconds in found.seconds.items()} }"
        )
    assert found.tokens_per_second > 0
