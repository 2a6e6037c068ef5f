"""The tables of a run: made from a holdout, saved, loaded, refused where damaged; their lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.baselines.counts import Popularity
from recsys.data.histories import Histories
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.tables import (
    NextListTable,
    RankTable,
    TableProtocol,
    TopKTable,
    evaluate,
    next_list_table,
    top_k_table,
)
from recsys.inference.ranking import top_k
from tests.helpers.rank_tables import SCHEMA

SCORER = Popularity(np.array([0.0, 4, 3, 2, 1]))


def holdout() -> Holdout:
    """Two targets of user 0 after one history, one of user 3 and one more of user 3 later."""
    return Holdout(
        users=np.array([0, 0, 3, 3]),
        targets=np.array([3, 4, 1, 2], dtype=np.int32),
        history_rows=np.array([0, 0, 1, 2]),
        histories=Histories.from_lists([[1, 2], [3], [3, 1]]),
        dropped=5,
    )


def ranks() -> RankTable:
    return evaluate(SCORER, holdout(), "test", "filter")


def best_items() -> TopKTable:
    items, scores = top_k(SCORER, holdout().histories, 3, "filter")
    return top_k_table(items, scores, holdout(), 4, "filter")


def next_lists() -> NextListTable:
    rows = np.array([0, 0, 0, 0, 1, 2, 2])
    bought = np.array([2, 2, 7, 9, 4, 5, 6], dtype=np.int32)
    purchases = Holdout(rows * 3, bought, rows, Histories.from_lists([[1]] * 3), dropped=8)
    lists = np.array([[4, 2, 7], [1, 2, 3], [5, 0, 0]], dtype=np.int32)
    return next_list_table(lists, purchases, 9, "allow")


def test_one_list_for_every_history() -> None:
    table = best_items()
    assert table.frame.drop("scores").to_dict(as_series=False) == {
        "user": [0, 3, 3],
        "history_length": [2, 1, 2],
        "items": [[3, 4, 0], [1, 2, 4], [2, 4, 0]],
    }
    assert table.frame["scores"].to_list()[1] == [4, 3, 1]
    assert table.items.tolist() == table.frame["items"].to_list()
    assert table.protocol == TableProtocol("test", 4, "filter", 5, length=3)


def test_one_row_of_lists_per_user() -> None:
    table = next_lists()
    assert table.frame.to_dict(as_series=False) == {
        "user": [0, 3, 6],
        "generated": [[4, 2, 7], [1, 2, 3], [5, 0, 0]],
        "targets": [[2, 2, 7, 9], [4], [5, 6]],
    }
    assert table.frame.dtypes == [pl.Int64, pl.List(pl.Int32), pl.List(pl.Int32)]
    assert table.protocol == TableProtocol("test", 9, "allow", 8, length=3)
    assert table.values("next_recall_at_3").tolist() == pytest.approx([2 / 3, 0, 1 / 2])
    summary = table.summary()
    assert list(summary) == list(table.metrics())
    for name, interval in summary.items():
        assert interval.low <= interval.mean == pytest.approx(table.values(name).mean())
    with pytest.raises(ValueError, match="no targets"):
        NextListTable(table.frame.head(0), table.protocol).summary()


# --- Saved and loaded -----------------------------------------------------------------------------

Table = RankTable | TopKTable | NextListTable
TABLES: dict[str, Callable[[], Table]] = {
    "rank table": ranks,
    "top-k table": best_items,
    "next-list table": next_lists,
}
each_table = pytest.mark.parametrize("table", [make() for make in TABLES.values()], ids=[*TABLES])


@each_table
def test_load_returns_what_was_saved(table: Table, tmp_path: Path) -> None:
    segmented = replace(table, frame=table.frame.with_columns(pl.lit("de").alias("country")))
    segmented.save(tmp_path / "table.parquet")
    loaded = type(table).load(tmp_path / "table.parquet")
    assert loaded.frame.equals(segmented.frame)
    assert loaded.frame.schema == segmented.frame.schema
    assert loaded.protocol == segmented.protocol
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]


@each_table
def test_what_is_no_such_table_is_refused(table: Table, tmp_path: Path) -> None:
    kind, path, noun = type(table), tmp_path / "table.parquet", table.noun
    with pytest.raises(InputError, match=rf"table\.parquet: cannot read the {noun}"):
        kind.load(path)
    pl.DataFrame({"user": [1]}).write_parquet(path)
    with pytest.raises(InputError, match=f"cannot read the {noun}: it does not hold its SHA-256"):
        kind.load(path)
    table.save(path)
    for other in (make() for make in TABLES.values()):
        if type(other) is not kind:
            with pytest.raises(InputError, match=f"not a {other.noun}$"):
                type(other).load(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="damaged: its SHA-256"):
        kind.load(path)
    key, fields = f"recsys.{noun.replace(' ', '_')}", asdict(table.protocol)
    table.frame.write_parquet(path, metadata={key: json.dumps(fields)})
    with pytest.raises(InputError, match="or is damaged"):
        kind.load(path)


# --- Several targets of one user ------------------------------------------------------------------


def queried(*rows: tuple[int, int, int, int]) -> RankTable:
    """Of (user, target, rank, history_length)."""
    frame = pl.DataFrame(list(rows), schema=SCHEMA, orient="row")
    return RankTable(frame, TableProtocol("test", 20, "allow", 0))


def test_an_item_that_one_list_is_asked_for_twice_counts_once() -> None:
    """Bought again later, after the same frozen history, it is one item of one list."""
    twice = queried((0, 4, 1, 3), (0, 4, 1, 3), (0, 5, 20, 3), (1, 4, 20, 3))
    once = queried((0, 4, 1, 3), (0, 5, 20, 3), (1, 4, 20, 3))
    for metric in ("recall_at_10", "precision_at_10", "ndcg_at_10", "map_at_10"):
        assert twice.values(metric).tolist() == once.values(metric).tolist()
    assert twice.values("recall_at_10").tolist() == [1 / 2, 0]
    assert twice.summary(["recall_at_10"])["recall_at_10"].mean == 1 / 4


def test_the_lists_of_a_history_that_advances_are_judged_one_by_one() -> None:
    """A user's figure is the mean over the lists: as one list, two targets would share it."""
    table = queried((0, 4, 1, 3), (0, 5, 1, 4), (1, 4, 20, 3), (1, 6, 1, 4))
    assert table.values("mrr").tolist() == [1, (1 / 20 + 1) / 2]
    assert table.values("precision_at_1").tolist() == [1, 1 / 2]
    assert table.values("ndcg_at_1").tolist() == [1, 1 / 2]
    # One item after two histories counts in both.
    again = queried((0, 4, 1, 3), (0, 4, 20, 4), (1, 4, 1, 3))
    assert again.values("recall_at_10").tolist() == [1 / 2, 1]
    # The longest history of one user and the shortest of the next are no list together.
    apart = queried((0, 4, 1, 4), (1, 5, 20, 0))
    assert apart.values("recall_at_10").tolist() == [1, 0]
    # A user and a length mean another history in each fold.
    table = queried((0, 4, 1, 3), (0, 5, 20, 3))
    folds = RankTable(table.frame.with_columns(fold=pl.Series([1, 2])), table.protocol)
    assert table.values("mrr").tolist() == [1]
    assert folds.values("mrr").tolist() == [(1 + 1 / 20) / 2]
