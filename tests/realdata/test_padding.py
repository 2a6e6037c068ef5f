"""No wasted tokens: how much of what a training reads is padding, as the configs ship."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from recsys.config.data import DataConfig
from recsys.config.files import load_experiment
from recsys.data.batches import TrainingBatches
from recsys.data.prepared import prepare

pytestmark = pytest.mark.realdata

CONFIGS = Path(__file__).parents[2] / "configs"
WINDOWS: list[Literal["newest", "all"]] = ["newest", "all"]


@pytest.mark.parametrize("log", ["ml-1m", "amazon-beauty"])
def test_less_than_a_twentieth_is_padding(log: str, mirror: Path, tmp_path: Path) -> None:
    experiment = load_experiment(CONFIGS / f"{log}.yaml")
    data = DataConfig(source=log)
    histories = prepare(log, data, tmp_path / "data").histories("test")
    length, tokens = experiment.model.max_sequence_length, experiment.training.batch_tokens
    for windows in WINDOWS:
        batches = list(TrainingBatches(histories, length, tokens, 0, windows))
        targets = sum(int((batch.targets > 0).sum()) for batch in batches)
        read = sum(int(batch.lengths.sum()) for batch in batches)
        assert 0.95 < read / sum(batch.items.numel() for batch in batches) < 1
        lost = np.maximum(histories.lengths - 1 - length, 0).sum() if windows == "newest" else 0
        assert targets == (histories.lengths - 1).sum() - lost
