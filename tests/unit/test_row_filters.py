"""Row filters and sessions: by hand, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.config import Columns, DataConfig, DropRows
from recsys.data.log import read_log
from recsys.data.prepared import prepare
from recsys.data.sessions import split_sessions
from recsys.data.sources import load_source
from recsys.errors import InputError

LINES = pl.DataFrame(
    {
        "invoice": ["1", "1", "C2", "3", "4"],
        "sku": ["lamp", "POST", "lamp", "cup", "cup"],
        "day": ["2010-01-01", "2010-01-01", "2010-01-02", "2010-01-03", "2010-01-04"],
        "buyer": [7, 7, 7, None, 8],
        "pieces": [2, 1, -2, 1, 0],
    }
)
COLUMNS = Columns(user_id="buyer", item_id="sku", timestamp="day")
RULES = (
    DropRows(reason="no customer", column="buyer", missing=True),
    DropRows(reason="cancelled", column="invoice", matches="^C"),
    DropRows(reason="nothing bought", column="pieces", below=1),
    DropRows(reason="no product", column="sku", matches="^[A-Z]+$"),
)


@pytest.mark.parametrize("ending", [None, "csv", "parquet"])
def test_dropped_rows_by_hand(ending: str | None, tmp_path: Path) -> None:
    source: Any = LINES
    if ending is not None:
        source = tmp_path / f"lines.{ending}"
        LINES.write_csv(source) if ending == "csv" else LINES.write_parquet(source)
    log, _ = load_source(source, DataConfig(columns=COLUMNS, drop=RULES))
    assert log.frame.collect("polars").to_polars()["item_id"].to_list() == ["lamp"]
    assert log.dropped == {
        "no customer": 1,
        "cancelled": 1,
        "nothing bought": 1,  # the cancelled line counts once
        "no product": 1,
    }


def test_the_dataset_stores_its_rules_and_counts(tmp_path: Path) -> None:
    config = DataConfig(columns=COLUMNS, drop=RULES[:1])
    dataset = prepare(LINES, config, tmp_path / "out")
    assert dataset.manifest.dropped == {"no customer": 1}
    assert dataset.manifest.counts["rows_read"] == 5
    assert dataset.config.drop == RULES[:1]
    other = prepare(LINES, DataConfig(columns=COLUMNS, drop=RULES[:2]), tmp_path / "other")
    assert other.fingerprint != dataset.fingerprint


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"column": "piece", "below": 1}, "no column 'piece'"),
        ({"column": "photo", "matches": "a"}, "'photo': has bytes that are no text"),
        ({"column": "tags", "matches": "a"}, "'tags': must be text or numbers, not List(Int64)"),
        ({"column": "left", "matches": "a"}, "'left': must be text or numbers, not Duration"),
        ({"column": "invoice", "matches": "("}, "'(' of 'x' is not a regular expression"),
        ({"column": "when", "below": 1}, "column 'when': must be numbers, not Date"),
        ({"column": "day", "below": 1}, "is not a number"),
    ],
)
def test_wrong_rules(rule: dict[str, Any], words: str) -> None:
    table = LINES.with_columns(
        when=pl.col("day").str.to_date(),
        photo=pl.lit(b"\xff"),
        tags=[1],
        left=pl.duration(days=1),
    )
    config = DataConfig(columns=COLUMNS, drop=(DropRows(reason="x", **rule),))
    with pytest.raises(InputError) as caught:
        load_source(table, config)
    assert words in str(caught.value)


def test_rules_are_refused_for_a_log_that_was_read_already(tmp_path: Path) -> None:
    log = read_log(LINES.drop_nulls(), COLUMNS)
    with pytest.raises(InputError, match="was read already"):
        prepare(log, DataConfig(drop=RULES), tmp_path / "out")


def test_sessions_by_hand(tmp_path: Path) -> None:
    log = pl.DataFrame(
        {
            "user_id": ["b", *["a"] * 13],
            "item_id": range(14),
            "timestamp": [0, 0, 30, 61, *(100 * n for n in range(2, 12))],
        }
    )
    dataset = prepare(log, DataConfig(session_gap=30), tmp_path / "out")
    assert dataset.user_ids.to_list() == sorted([f"a#{n}" for n in range(1, 13)] + ["b#1"])
    by_user = dict(zip(dataset.user_ids, dataset.offsets[1:] - dataset.offsets[:-1], strict=True))
    assert (by_user["a#1"], by_user["a#2"], by_user["a#12"], by_user["b#1"]) == (2, 1, 1, 1)
    plain = prepare(log, DataConfig(), tmp_path / "plain")
    assert plain.manifest.settings["session_gap"] is None
    assert dataset.manifest.settings["session_gap"] == 30


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 2), min_size=1, max_size=40), st.integers(1, 9))
def test_sessions_keep_all_rows_and_are_separate(rows: list[tuple[int, int]], gap: int) -> None:
    table = pl.DataFrame(rows, schema=["user_id", "timestamp"], orient="row")
    log = read_log(table.with_row_index("item_id").with_columns(pl.col("user_id") % 3))
    before = log.frame.collect("polars").to_polars()
    after = split_sessions(log, gap).frame.collect("polars").to_polars()
    assert after["order"].to_list() == list(range(len(rows)))
    assert after["user_id"].is_sorted()
    users = after["user_id"].str.split("#").list
    assert (
        after.with_columns(user_id=users.first().cast(pl.Int64))
        .drop("order")
        .sort("user_id", "item_id")
        .equals(before.drop("order").sort("user_id", "item_id"))
    )
    spans = (
        after.with_columns(user=users.first())
        .group_by("user", "user_id")
        .agg(
            begin=pl.col("timestamp").min(),
            end=pl.col("timestamp").max(),
            pause=pl.col("timestamp").diff().max(),
        )
    )
    assert (spans["pause"].fill_null(0) <= gap).all(), "no pause within"
    between = spans.sort("user", "begin").select(
        (pl.col("begin") - pl.col("end").shift(1)).over("user").alias("pause")
    )
    assert (between["pause"].drop_nulls() > gap).all(), "a pause between"
