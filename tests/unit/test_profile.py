"""The profile of training steps: its parts, its counts, and the command."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from recsys.cli import app
from recsys.config import parse_experiment
from recsys.data.prepared import PreparedDataset
from recsys.experiments.profile import profile
from recsys.inference.catalogue import Catalogue
from recsys.training import cost

SETTINGS = [
    "model.embedding_dim=8",
    "model.num_heads=1",
    "model.num_blocks=0",
    "model.dropout=0",
    "model.head={kind: dot_product}",
    "training.precision=float32",
]


def test_a_profile_counts_tokens_padding_and_operations(tiny_dataset: PreparedDataset) -> None:
    """All histories are one batch, so every step is the same: no blocks, so only the head's
    products, forward and twice backward, 2 · B · L · (I + 1) · D each."""
    experiment = parse_experiment({}, SETTINGS)
    found = profile(experiment, Catalogue(5), tiny_dataset.histories("valid"), steps=2)
    assert list(found.seconds) == ["data", "encoder", "loss", "backward", "optimiser"]
    lengths = tiny_dataset.histories("valid").lengths
    lengths = lengths[lengths >= 2] - 1
    tokens = len(lengths) * lengths.max()
    assert found.padding_share == pytest.approx(1 - lengths.sum() / tokens)
    assert found.tokens_per_second == pytest.approx(lengths.sum() / sum(found.seconds.values()))
    assert tiny_dataset.num_items < 16
    columns = 16  # the logits of a position fill cache lines
    assert found.gigaflops * 1e9 == 3 * 2 * tokens * columns * 8
    assert found.peak_share > 0
    assert found.precision == "float32"


def test_a_profile_forks_the_random_state_of_its_own_gpu_only(
    tiny_dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all GPUs torch would start each, and warn."""
    forked: list[list[int]] = []

    def fork_rng(devices: list[int]) -> AbstractContextManager[None]:
        forked.append(devices)
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr("recsys.experiments.profile.gpus", lambda: [2])
    monkeypatch.setattr("recsys.experiments.profile._measure", lambda *_: None)
    experiment = parse_experiment({}, SETTINGS)
    profile(experiment, Catalogue(5), tiny_dataset.histories("valid"), steps=1)
    assert forked == [[2]]


def test_a_profile_restores_the_random_state(tiny_dataset: PreparedDataset) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    profile(parse_experiment({}, SETTINGS), Catalogue(5), tiny_dataset.histories("valid"), steps=1)
    assert torch.equal(torch.rand(2), expected)


def test_the_command_shows_parts_or_json(tmp_path: Path, tiny_log: pl.DataFrame) -> None:
    log, config = tmp_path / "log.csv", tmp_path / "config.yaml"
    tiny_log.write_csv(log)
    config.write_text(f"data: {{source: {log}}}\n")
    data = tmp_path / "data"
    assert CliRunner().invoke(app, ["prepare", str(log), "--out", str(data)]).exit_code == 0
    command = ["profile", str(config), "--data", str(data), "--steps", "1"]
    for setting in SETTINGS:
        command += ["--set", setting]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    for word in ("encoder", "optimiser", "padding share", "share of matrix peak"):
        assert word in shown.output
    (row,) = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert row["loss_seconds"] > 0
    assert row["precision"] == "float32"


class _Products(TorchDispatchMode):
    """Notes the sizes of products, which take a given time for each operation."""

    def __init__(self, seconds_per_operation: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds_per_operation = seconds_per_operation
        self.now, self.sizes = 0.0, list[int]()

    def perf_counter(self) -> float:
        return self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            self.sizes.append(size := len(args[0]))
            self.now += 2 * size**3 * self.seconds_per_operation
            return args[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("speed", "sizes"),
    [
        (1e12, [256, 256, 512, 1024, *[2048] * 7]),
        (1e9, [256, 256, 512, 512, 512]),  # emulated: .03 s, .27 s, and twice that
        (1e7, [256, 256, 256]),
    ],
)
def test_a_slow_product_is_not_made_large(
    speed: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _Products(1 / speed) as products:
        monkeypatch.setattr(cost, "time", products)
        assert cost.matrix_speed.__wrapped__("cpu", torch.float32) == pytest.approx(speed)
    assert products.sizes == sizes
