"""What training costs as the catalogue and the log grow: sampled softmax on generated data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from recsys.config.experiment import Experiment, SampledSoftmax, TrainingConfig
from recsys.config.model import DotProduct, NextItemConfig
from recsys.data.histories import Histories
from recsys.inference.catalogue import Catalogue
from recsys.training.loop import build_batches
from tests.benchmarks.step_costs import measure_steps

SIZES = [
    *((1_000_000, items) for items in (10_000, 100_000, 1_000_000)),
    *((interactions, 100_000) for interactions in (10_000_000, 100_000_000)),
]
"""Interactions and items; the log of a million and 100,000 items stands in both rows."""
STEPS = int(os.environ.get("STEPS", "150"))


def grow(interactions: int, num_items: int) -> dict[str, float]:
    """Over users of 50 items, popular ones more often (Zipf): the plan of an epoch, and some steps.

    A step is a step, however long the epoch: 150 of them are 1.9 million tokens.
    """
    rng = np.random.default_rng(0)
    users = interactions // 50
    items = (num_items * rng.random(users * 50, dtype=np.float32) ** 3).astype(np.int32) + 1
    histories = Histories(items, np.arange(users + 1, dtype=np.int64) * 50)
    experiment = Experiment(
        model=NextItemConfig(embedding_dim=64, max_sequence_length=50, head=DotProduct()),
        training=TrainingConfig(loss=SampledSoftmax(kind="sampled_softmax", num_negatives=1024)),
    )
    started = time.perf_counter()
    next(iter(build_batches(experiment, histories)))
    planned = time.perf_counter() - started
    found = measure_steps(experiment, Catalogue(num_items), histories, STEPS)
    return {
        "plan": planned * 1e6 / interactions,
        "steps": 1e6 / found.tokens_per_second,
        **found.memory_mib,
    }


@pytest.mark.benchmark
def test_growth(capsys: pytest.CaptureFixture[str]) -> None:
    """Each size in a process of its own; MOST_INTERACTIONS leaves the largest out."""
    most = int(os.environ.get("MOST_INTERACTIONS", "100000000"))
    for interactions, items in SIZES:
        if interactions > most:
            continue
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.test_growth"]
        command += [str(interactions), str(items)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(out.splitlines()[-1])
        with capsys.disabled():
            print(
                f"\n{interactions:,} interactions, {items:,} items: "
                f"{found['steps']:.1f} s per million interactions, {found['plan']:.2f} s of plan, "
                f"peak {found['peak_memory_mib']:,.0f} MiB",
                end="",
            )


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    print(json.dumps(grow(int(sys.argv[1]), int(sys.argv[2]))))
