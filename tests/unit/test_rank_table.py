"""The rank table: made from a holdout, saved and loaded."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.baselines.popularity import Popularity
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.errors import InputError
from recsys.evaluation.tables.rank import RankProtocol, RankTable, evaluate


@pytest.fixture
def table() -> RankTable:
    """Popularity 4, 3, 2, 1 of items 1 to 4, for users 0, 2 and 5."""
    scorer = Popularity(np.array([0.0, 4, 3, 2, 1]))
    holdout = Holdout(
        users=np.array([0, 2, 5]),
        targets=np.array([3, 4, 1], dtype=np.int32),
        places=np.array([1, 5, 9]),
        rows=np.arange(3),
        histories=Histories.from_lists([[1], [2, 1, 3], []]),
        dropped=7,
    )
    return evaluate(scorer, holdout, "test", "filter")


def test_one_row_per_target(table: RankTable) -> None:
    assert table.frame.to_dict(as_series=False) == {
        "user": [0, 2, 5],
        "target": [3, 4, 1],
        "rank": [2, 1, 1],
        "history_length": [1, 3, 0],
    }
    assert table.frame.dtypes == [pl.Int64, pl.Int32, pl.Int64, pl.Int32]
    assert table.ranks.tolist() == [2, 1, 1]
    assert table.protocol == RankProtocol("test", 4, "filter", "against_target", 7, "catalogue")


def test_load_returns_what_was_saved(table: RankTable, tmp_path: Path) -> None:
    segmented = RankTable(
        table.frame.with_columns(country=pl.Series(["de", "fr", "de"])), table.protocol
    )
    segmented.save(tmp_path / "ranks.parquet")
    again = RankTable.load(tmp_path / "ranks.parquet")
    assert again.frame.equals(segmented.frame)
    assert again.protocol == segmented.protocol
    assert [path.name for path in tmp_path.iterdir()] == ["ranks.parquet"]


def test_save_that_fails_leaves_the_old_file(
    table: RankTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ranks.parquet"
    path.write_bytes(b"old")

    def fail(frame: pl.DataFrame, file: Path, **options: object) -> None:
        file.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fail)
    with pytest.raises(InputError, match=r"ranks\.parquet: cannot be written: disk full"):
        table.save(path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(path.name, b"old")]


def test_save_into_a_missing_folder_names_the_file(table: RankTable, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none/ranks\.parquet: cannot be written"):
        table.save(tmp_path / "none" / "ranks.parquet")


def test_load_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ranks\.parquet: cannot read the rank table"):
        RankTable.load(tmp_path / "ranks.parquet")


def test_load_refuses_a_truncated_file(table: RankTable, tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    table.save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot read the rank table"):
        RankTable.load(path)


def test_load_refuses_other_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pl.DataFrame({"user": [1]}).write_parquet(path)
    with pytest.raises(InputError, match=r"not a rank table: .*rank, .*target"):
        RankTable.load(path)


@pytest.mark.parametrize("name", ["candidates", "seen"])
def test_load_needs_every_field_of_the_protocol(
    name: str, table: RankTable, tmp_path: Path
) -> None:
    path = tmp_path / "ranks.parquet"
    fields = asdict(table.protocol)
    del fields[name]
    table.frame.write_parquet(path, metadata={"recsys.rank_table": json.dumps(fields)})
    with pytest.raises(InputError, match=f"not a rank table: {name} missing"):
        RankTable.load(path)
