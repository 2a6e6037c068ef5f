"""Sessions: a user's interactions, split at long pauses."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.config import DataConfig
from recsys.data.prepared import prepare
from tests.read_logs import filtered, read_plain


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


@settings(max_examples=20)
@given(st.lists(st.tuples(*[st.integers(0, 20)] * 2), min_size=1, max_size=40), st.integers(1, 9))
def test_sessions_keep_all_rows_and_are_separate(rows: list[tuple[int, int]], gap: int) -> None:
    table = pl.DataFrame(rows, schema=["user_id", "timestamp"], orient="row")
    log = read_plain(table.with_row_index("item_id").with_columns(pl.col("user_id") % 3))
    before = log.table()
    after = filtered(log, DataConfig(session_gap=gap)).table()
    assert after["user_id"].is_sorted()
    users = after["user_id"].str.split("#").list
    assert (
        after.with_columns(user_id=users.first().cast(pl.Int64))
        .sort("user_id", "item_id")
        .equals(before.sort("user_id", "item_id"))
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
