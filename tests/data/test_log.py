"""The log: one total order for every source, and its filters."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.config.data import Columns, DataConfig
from recsys.data.log import Log
from tests.read_logs import filtered, read_plain

ROWS = [("b", 2, 30), ("a", 1, 20), ("b", 1, 10), ("a", 3, 20), ("a", 2, 5)]
NAMES = ["user_id", "item_id", "timestamp"]


def frame_of(rows: list[tuple[Any, ...]], names: list[str] = NAMES) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=names, orient="row")


def rows_of(log: Log) -> list[tuple[Any, ...]]:
    return log.table().select(NAMES).rows()


def times_of(values: list[Any] | pl.Series) -> list[int]:
    table = pl.DataFrame({"user_id": 1, "item_id": range(len(values)), "timestamp": values})
    return [row[2] for row in rows_of(read_plain(table))]


def items_of(values: list[Any]) -> list[int]:
    table = pl.DataFrame({"user_id": 1, "item_id": range(len(values)), "timestamp": values})
    return [row[1] for row in rows_of(read_plain(table))]


def test_the_fingerprint_depends_on_every_value() -> None:
    first = read_plain(frame_of(ROWS)).fingerprint
    for other in [("b", 2, 31), ("b", 4, 30), ("c", 2, 30)]:
        assert read_plain(frame_of([other, *ROWS[1:]])).fingerprint != first


def test_floats_are_ordered_before_they_are_rounded_down() -> None:
    assert items_of([2.9, 2.1, -0.5]) == [2, 1, 0]
    assert times_of([2.9, 2.1, -0.5]) == [-1, 2, 2]


def test_dates_and_date_times_are_seconds_since_1970() -> None:
    assert times_of([date(1970, 1, 2), date(1969, 12, 31)]) == [-86_400, 86_400]
    moments = [datetime(1970, 1, 1, 0, 0, 9, 999_999), datetime(1970, 1, 1, 0, 0, 9, 5)]
    assert times_of(moments) == [9, 9]
    assert items_of(moments) == [1, 0]
    tokyo = timezone(timedelta(hours=9))
    assert times_of([datetime(1970, 1, 1, 9, 0, 7, tzinfo=tokyo)]) == [7]
    assert times_of([datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)]) == [-1]
    for unit in ("ms", "us", "ns"):
        moment = pl.Series([datetime(2001, 9, 9, 1, 46, 40)]).cast(pl.Datetime(unit))
        assert times_of(moment) == [1_000_000_000]


REPEATS = [("a", 1, 5), ("a", 2, 6), ("a", 1, 5), ("a", 1, 7), ("b", 1, 5)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("keep", [("a", 1, 5), ("a", 1, 5), ("a", 2, 6), ("a", 1, 7), ("b", 1, 5)]),
        ("drop_exact", [("a", 1, 5), ("a", 2, 6), ("a", 1, 7), ("b", 1, 5)]),
        ("first", [("a", 1, 5), ("a", 2, 6), ("b", 1, 5)]),
        ("last", [("a", 2, 6), ("a", 1, 7), ("b", 1, 5)]),
    ],
)
def test_duplicates(policy: Any, expected: list[tuple[Any, ...]]) -> None:
    log = filtered(read_plain(frame_of(REPEATS)), DataConfig(duplicates=policy))
    assert rows_of(log) == expected
    assert log.rows == len(expected)


interactions = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=40
)


@settings(max_examples=20)
@given(interactions, st.randoms(use_true_random=False))
def test_shuffling_rows_changes_nothing_under_a_total_order(
    rows: list[tuple[int, int, int]], random: Any
) -> None:
    table = frame_of([(*row, n) for n, row in enumerate(rows)], [*NAMES, "line"])
    order = list(range(len(rows)))
    random.shuffle(order)
    logs = [read_plain(source, Columns(position="line")) for source in (table, table[order])]
    assert logs[0].fingerprint == logs[1].fingerprint
    assert rows_of(logs[0]) == rows_of(logs[1])
    assert rows_of(logs[0]) == sorted(rows, key=lambda row: (row[0], row[2]))


@settings(max_examples=20)
@given(interactions, st.integers(1, 4), st.integers(1, 4))
def test_k_core_against_plain_python(
    rows: list[tuple[int, int, int]], least_user: int, least_item: int
) -> None:
    expected = sorted(rows, key=lambda row: (row[0], row[2]))
    while True:
        users, items = (Counter(row[i] for row in expected) for i in (0, 1))
        kept = [r for r in expected if users[r[0]] >= least_user and items[r[1]] >= least_item]
        if kept == expected:
            break
        expected = kept
    log = read_plain(frame_of(rows))
    config = DataConfig(
        min_user_interactions=least_user, min_item_interactions=least_item, k_core=True
    )
    if expected:
        assert rows_of(filtered(log, config)) == expected
    else:
        with pytest.raises(ValueError, match="no row is left"):
            filtered(log, config)


def test_the_fingerprint_depends_on_names_types_and_where_texts_end() -> None:
    kept: list[tuple[str, list[Any]]] = [
        ("x", ["ab", "c"]),
        ("x", ["a", "bc"]),
        ("y", ["ab", "c"]),
        ("x", [["a", "b"], ["c"]]),
        ("x", [["a"], ["b", "c"]]),
        ("x", [1, None]),
        ("x", [1.0, None]),
        ("x", ["1", None]),
    ]
    tables = [(name, frame_of(ROWS[:2]).with_columns(pl.Series(name, v))) for name, v in kept]
    assert len({read_plain(t, keep=[name]).fingerprint for name, t in tables}) == len(kept)


def test_the_fingerprint_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_plain(frame_of(ROWS)).fingerprint
    monkeypatch.setattr("recsys.data.log.BLOCK", 2)
    assert read_plain(frame_of(ROWS)).fingerprint == whole


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
