"""Training on a GPU with the Triton kernels and without: tokens per second, MFU, peak memory.

    python -m pytest tests/benchmarks/test_gpu.py -m benchmark

on a machine with a GPU; write the figures into docs/lab-log.md, with the GPU's name.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from problems import config_path

from recsys.config import load_experiment
from recsys.data.histories import Histories
from recsys.experiments.profile import profile
from recsys.inference.catalogue import Catalogue
from recsys.training import kernel_choice

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
def test_training_on_a_gpu(
    head: str,
    items: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The config of MovieLens-1M; a kernel that is right is taken, whether it is faster or not."""
    pytest.importorskip("triton", reason="triton is not installed")
    caplog.set_level("DEBUG", logger="recsys.training.kernel_choice")
    experiment = load_experiment(config_path("ml-1m", head))
    histories = like_ml_1m(items)
    for way, worthwhile in (("torch", 0.0), ("kernels", math.inf)):
        monkeypatch.setattr(kernel_choice, "WORTHWHILE", worthwhile)
        found = profile(experiment, Catalogue(items), histories, STEPS)
        with capsys.disabled():
            print(
                f"\n{torch.cuda.get_device_name()}, {head}, {items:,} items, {way}, "
                f"{found.precision}: {found.tokens_per_second:,.0f} tokens/s, "
                f"MFU {found.peak_share:.1%}, {found.memory_mib}, milliseconds a step: "
                f"{ {part: round(1e3 * seconds, 2) for part, seconds in found.seconds.items()} }"
            )
            print("\n".join(caplog.messages))
        caplog.clear()
    assert found.tokens_per_second > 0
