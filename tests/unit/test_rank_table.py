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
from recsys.evaluation.tables import RankProtocol, RankTable, evaluate
from recsys.folders.seal import BLANK, seal


@pytest.fixture
def table() -> RankTable:
    """Popularity 4, 3, 2, 1 of items 1 to 4, for users 0, 2 and 5."""
    scorer = Popularity(np.array([0.0, 4, 3, 2, 1]))
    holdout = Holdout(
        users=np.array([0, 2, 5]),
        targets=np.array([3, 4, 1], dtype=np.int32),
        positions=np.array([1, 5, 9]),
        history_rows=np.arange(3),
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
    with pytest.raises(InputError, match="damaged: its SHA-256"):
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
    metadata = {"recsys.rank_table": json.dumps(fields), "recsys.seal": BLANK}
    table.frame.write_parquet(path, metadata=metadata)
    seal(path)
    with pytest.raises(InputError, match=f"not a rank table: {name} missing"):
        RankTable.load(path)


def test_load_refuses_a_table_without_a_checksum(table: RankTable, tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    metadata = {"recsys.rank_table": json.dumps(asdict(table.protocol))}
    table.frame.write_parquet(path, metadata=metadata)
    with pytest.raises(InputError, match="damaged: its SHA-256 cannot be found"):
        RankTable.load(path)


def queried(*rows: tuple[int, int, int, int]) -> RankTable:
    """Of (user, target, rank, history_length)."""
    frame = pl.DataFrame(
        list(rows),
        schema={
            "user": pl.Int64,
            "target": pl.Int32,
            "rank": pl.Int64,
            "history_length": pl.Int32,
        },
        orient="row",
    )
    return RankTable(frame, RankProtocol("test", 20, "allow", "against_target", 0))


def test_an_item_that_one_list_is_asked_for_twice_counts_once() -> None:
    """Bought again later, after the same frozen history, it is one item of one list."""
    twice = queried((0, 4, 1, 3), (0, 4, 1, 3), (0, 5, 20, 3), (1, 4, 20, 3))
    once = queried((0, 4, 1, 3), (0, 5, 20, 3), (1, 4, 20, 3))
    for metric in ("recall_at_10", "precision_at_10", "ndcg_at_10", "map_at_10"):
        assert twice.values(metric).tolist() == once.values(metric).tolist()
    assert twice.values("recall_at_10").tolist() == [1 / 2, 0]
    assert twice.summary(["recall_at_10"])["recall_at_10"].mean == 1 / 4


def test_an_item_that_two_lists_are_asked_for_counts_in_both() -> None:
    """After a longer history it is another question."""
    table = queried((0, 4, 1, 3), (0, 4, 20, 4), (1, 4, 1, 3))
    assert table.values("recall_at_10").tolist() == [1 / 2, 1]


def test_the_lists_of_a_history_that_advances_are_judged_one_by_one() -> None:
    """A user's figure is the mean over the lists: as one list, two targets would share it."""
    table = queried((0, 4, 1, 3), (0, 5, 1, 4), (1, 4, 20, 3), (1, 6, 1, 4))
    assert table.values("mrr").tolist() == [1, (1 / 20 + 1) / 2]
    assert table.values("precision_at_1").tolist() == [1, 1 / 2]
    assert table.values("ndcg_at_1").tolist() == [1, 1 / 2]
    # The longest history of one user and the shortest of the next are no list together.
    apart = queried((0, 4, 1, 4), (1, 5, 20, 0))
    assert apart.values("recall_at_10").tolist() == [1, 0]


def test_lists_of_two_folds_are_judged_one_by_one() -> None:
    """A user and a length mean another history in each."""
    table = queried((0, 4, 1, 3), (0, 5, 20, 3))
    folds = RankTable(table.frame.with_columns(fold=pl.Series([1, 2])), table.protocol)
    assert table.values("mrr").tolist() == [1]
    assert folds.values("mrr").tolist() == [(1 + 1 / 20) / 2]
