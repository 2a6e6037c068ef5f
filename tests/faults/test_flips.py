"""Flipped bits, cut ends and added bytes in every file that the library reads again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable, TableProtocol
from recsys.training.checkpoints import CheckpointFile, TrainingState
from recsys.training.epochs import Curve


@pytest.fixture
def flips(budget: Callable[[int, int], int]) -> int:
    """Per file; any number finds the same in the long run."""
    return budget(60, 3000)


def damages(content: bytes, flips: int, chance: random.Random) -> Iterator[bytes]:
    for _ in range(flips):
        flipped = bytearray(content)
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)
    for cut in (0, 1, len(content) // 2, len(content) - 1):
        yield content[:cut]
    yield content + b"\0"


def assert_refused_or_equal(
    path: Path, read: Callable[[], object], expected: object, flips: int
) -> int:
    """Damage a file in many ways; return how often that was found."""
    content, found = path.read_bytes(), 0
    for damaged in damages(content, flips, random.Random(0)):  # noqa: S311 - no secret
        path.write_bytes(damaged)
        try:
            value, message = read(), ""
        except InputError as error:
            value, message = expected, str(error)
        found += bool(message)
        assert value == expected
        assert "\n" not in message
        assert not message or str(path.parent) in message
    path.write_bytes(content)
    assert read() == expected
    return found


def test_rank_tables(tmp_path: Path, flips: int) -> None:
    frame = pl.DataFrame(
        {
            "user": np.arange(500),
            "target": np.arange(1, 501, dtype=np.int32),
            "rank": np.arange(500) % 7 + 1,
            "history_length": np.full(500, 3, dtype=np.int32),
        }
    )
    table = RankTable(frame, TableProtocol("test", 500, "filter", 0))
    path = tmp_path / "ranks.parquet"
    table.save(path)

    def read() -> tuple[object, object]:
        loaded = RankTable.load(path)
        return loaded.protocol, loaded.frame.rows()

    assert assert_refused_or_equal(path, read, read(), flips) >= flips


def test_checkpoints(tmp_path: Path, flips: int) -> None:
    weights = {"items": torch.randn(50, 8), "bias": torch.randn(3), "step": torch.tensor(7.0)}
    random = torch.arange(16, dtype=torch.uint8)[None]
    state = TrainingState(
        {"weights": weights, "moments": [{0: torch.zeros(50, 8)}], "random": random, "step": 12},
        Curve([{"train/loss": 2.0}]),
        run_id="run",
    )
    file = CheckpointFile(tmp_path / "run.checkpoint", {"seed": 0})
    file.write(state)

    def read() -> object:
        found = file.read()
        assert found is not None
        saved = found.checkpoint
        kept = {name: value.tolist() for name, value in saved["weights"].items()}
        moments = saved["moments"][0][0].tolist(), saved["random"].tolist()
        return found.run_id, saved["step"], found.curve.epochs, kept, moments

    assert assert_refused_or_equal(file.path, read, read(), flips) >= flips


@pytest.mark.parametrize("name", ["manifest.json", "items.npy", "cuts.npy", "items.parquet"])
def test_datasets(name: str, tiny_log: pl.DataFrame, tmp_path: Path, flips: int) -> None:
    path = prepare(tiny_log, out=tmp_path / "data").path

    def read() -> object:
        found = PreparedDataset.open(path)
        arrays = found.items, found.timestamps, found.offsets, found.cuts
        manifest = found.manifest.model_dump()
        return manifest, found.item_table.rows(), [array.tolist() for array in arrays]

    assert assert_refused_or_equal(path / name, read, read(), flips) >= 0.7 * flips
    prepare(tiny_log, out=path)
    shutil.rmtree(path)
