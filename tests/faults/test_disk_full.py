"""A disk that is full: one line that says so, with the path, and the old content is kept."""

from __future__ import annotations

import os
import subprocess
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
from tests.helpers.rank_tables import SCHEMA

ROWS = 400_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "recsys-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs root and the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def write_log(path: Path) -> None:
    log = pl.DataFrame({"user_id": np.arange(ROWS) // 4, "item_id": np.arange(ROWS) % 9})
    prepare(log.with_columns(timestamp=pl.int_range(ROWS)), out=path)


def write_table(path: Path) -> None:
    chance = np.random.default_rng(0)
    frame = pl.DataFrame({name: chance.integers(0, 2**31, ROWS) for name in SCHEMA})
    RankTable(frame, TableProtocol("test", 500, "filter", 0)).save(path)


def write_checkpoint(path: Path) -> None:
    weights = {"items": torch.randn(ROWS, 2)}
    CheckpointFile(path, {}).write(TrainingState(weights))


@pytest.mark.parametrize("write", [write_log, write_table, write_checkpoint])
def test_a_full_disk_is_named(write: Callable[[Path], None], small: Path) -> None:
    with pytest.raises(InputError) as caught:
        write(small / "out")
    assert str(caught.value) == f"{small / 'out'}: cannot be written: the disk is full"
    assert not [path for path in small.iterdir() if path.name != ".out.lock"]


def test_the_old_dataset_is_kept(small: Path) -> None:
    log = pl.DataFrame({"user_id": [1] * 4, "item_id": [1, 2, 3, 1], "timestamp": range(4)})
    prepare(log, out=small / "out")
    with pytest.raises(InputError, match="the disk is full"):
        write_log(small / "out")
    assert PreparedDataset.open(small / "out").num_users == 1
