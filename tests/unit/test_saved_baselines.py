"""Fitted baselines as files: the same scores after a round trip, and no damaged file is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from recsys.baselines.saved import FittedBaseline, load_baseline, save_baseline
from recsys.baselines.tuned import BASELINES
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError


@pytest.mark.parametrize("name", BASELINES)
def test_a_saved_baseline_scores_as_before(
    name: str, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    scorer = BASELINES[name].fit(tiny_dataset, "test", BASELINES[name].grid[0])
    save_baseline(FittedBaseline(name, scorer), tmp_path / "file")
    loaded = load_baseline(tmp_path / "file", name, tiny_dataset.num_items)
    histories = tiny_dataset.histories("test")
    assert torch.equal(loaded.score(histories), scorer.score(histories))


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("followers.columns", 2**30, "followers.columns must be item tokens"),
        ("followers.offsets", -1, "followers.offsets must ascend"),
        ("followers.values", np.nan, "followers.values must be finite"),
        ("counts", np.inf, "counts must be finite"),
    ],
)
def test_a_damaged_baseline_is_refused(
    part: str, value: float, said: str, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    scorer = BASELINES["markov"].fit(tiny_dataset, "test", None)
    save_baseline(FittedBaseline("markov", scorer), tmp_path / "file")
    with safe_open(tmp_path / "file", framework="numpy") as file:
        header = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    tensors[part][0] = value
    save_file(tensors, tmp_path / "file", header)
    with pytest.raises(InputError, match=said):
        load_baseline(tmp_path / "file", "markov", tiny_dataset.num_items)
    with pytest.raises(InputError, match="it holds markov, not ease"):
        load_baseline(tmp_path / "file", "ease", tiny_dataset.num_items)
