"""Columns are guessed where name and type leave no doubt, and only there."""

from __future__ import annotations

import logging
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.config import Columns, DataConfig
from recsys.data.columns import guess_columns
from recsys.data.log import find_columns
from recsys.data.prepared import prepare
from recsys.data.tables import open_table
from recsys.errors import InputError


def sample(user: str, item: str, time: str, /, **more: Any) -> pl.DataFrame:
    return pl.DataFrame({user: [7], item: ["A1"], time: [1_700_000_000], **more})


@pytest.mark.parametrize(
    "name",
    [
        *("user_id", "customer_id", "userId", "CustomerID", "visitorid", "client", "member_id"),
        *("uid", "USER_ID", "Customer ID", "user", "customer", "session_id", "account_id"),
    ],
)
def test_names_of_users(name: str) -> None:
    assert guess_columns(sample(name, "sku", "ts")).columns.user_id == name


@pytest.mark.parametrize(
    "name",
    [
        *("item_id", "sku", "product_id", "movieId", "itemid", "article", "asin", "StockCode"),
        *("track_id", "isbn", "SKU", "Product-ID", "anime_id", "aid"),
    ],
)
def test_names_of_items(name: str) -> None:
    assert guess_columns(sample("uid", name, "ts")).columns.item_id == name


@pytest.mark.parametrize(
    "name",
    [
        *("timestamp", "ts", "event_time", "InvoiceDate", "bought_at", "date", "datetime"),
        *("created_at", "unix_time", "eventTime", "utcTimestamp", "time_ms"),
    ],
)
def test_names_of_times(name: str) -> None:
    assert guess_columns(sample("uid", "sku", name)).columns.timestamp == name


@pytest.mark.parametrize(
    "names",
    [
        ("Kunden-Nr.", "Artikel-Nr.", "Bestelldatum"),
        ("kunde", "artikel", "datum"),
        ("id_client", "id_produit", "date_commande"),
        ("usuario", "producto", "fecha"),
    ],
)
def test_names_of_other_languages(names: tuple[str, str, str]) -> None:
    columns = guess_columns(sample(*names)).columns
    assert (columns.user_id, columns.item_id, columns.timestamp) == names


@pytest.mark.parametrize(
    "seen", [1, 1.0, date(2024, 1, 5), datetime(2024, 1, 5), "2024-01-05", "7"]
)
def test_types_of_times(seen: Any) -> None:
    table = pl.DataFrame({"uid": [1], "sku": [2], "date": [seen]})
    assert guess_columns(table).columns.timestamp == "date"


def test_what_was_guessed_is_said() -> None:
    found = guess_columns(sample("customer_id", "item_id", "ts"))
    assert found.guessed == {"user": "customer_id", "time": "ts"}
    assert str(found) == "user 'customer_id', time 'ts'"
    assert guess_columns(sample("user_id", "item_id", "timestamp")).guessed == {}


def test_a_default_name_wins_over_another_name_and_an_id_over_a_name() -> None:
    table = sample("customer_id", "sku", "event_time", user_id=[1], timestamp=[2])
    assert guess_columns(table).columns.model_dump() == {
        "user_id": "user_id",
        "item_id": "sku",
        "timestamp": "timestamp",
        "position": None,
    }
    assert guess_columns(sample("uid", "movie", "ts", movieId=[1])).columns.item_id == "movieId"


def test_an_empty_column_is_not_preferred() -> None:
    table = sample("uid", "sku", "date_added").with_columns(read_at=pl.lit(""))
    assert guess_columns(table).columns.timestamp == "date_added"
    assert guess_columns(table.drop("date_added")).columns.timestamp == "read_at"


def test_an_empty_column_of_a_default_name_is_passed_over_where_another_fits() -> None:
    table = sample("session_id", "sku", "ts").with_columns(user_id=pl.lit("NA"))
    found = guess_columns(table)
    assert found.columns.user_id == "session_id"
    assert guess_columns(table.drop("session_id")).columns.user_id == "user_id"


@pytest.mark.parametrize(
    "day",
    ["2026-01-05", "2026-01-05 00:00:00", 20260105, date(2026, 1, 5), datetime(2026, 1, 5)],
)
@pytest.mark.parametrize("clock", ["10:20:30", "9:05", "9:05 pm", "23:59:59.5", time(10, 20, 30)])
@pytest.mark.parametrize("name", ["time", "hour_min"])
def test_days_beside_times_of_day_are_refused(day: Any, clock: Any, name: str) -> None:
    table = sample("uid", "sku", "row").with_columns(pl.lit(clock).alias(name), date=pl.lit(day))
    with pytest.raises(InputError, match=f"date has days, and {name} has times of day: join them"):
        guess_columns(table)
    days_alone = guess_columns(table, Columns(timestamp="date"))
    assert days_alone.columns.timestamp == "date"


@pytest.mark.parametrize(
    ("day", "other"),
    [
        (datetime(2026, 1, 5, 1), {"clock": "10:20"}),
        ("2026-01-05 10:20", {"clock": "10:20"}),
        ("2026-01-05", {"aspect": "16:9"}),
        ("2026-01-05", {"shift": "24:00"}),
        ("2026-01-05", {"Song_Length": "3:45"}),
    ],
)
def test_times_and_what_is_no_time_of_day(day: Any, other: dict[str, str]) -> None:
    more = {name: pl.lit(text) for name, text in other.items()}
    table = sample("uid", "sku", "row").with_columns(date=pl.lit(day), **more)
    assert guess_columns(table).columns.timestamp == "date"


def test_columns_that_may_be_times_are_named() -> None:
    table = sample("uid", "sku", "price").with_columns(moment=pl.lit("2026-01-05T10:20:30"))
    with pytest.raises(InputError, match="which column is the time; .*; moment may be times"):
        guess_columns(table)


def test_columns_without_names_are_shown_with_values() -> None:
    """The order of user and item is a guess that only the values can correct."""
    table = pl.DataFrame({"1": ["B0030"], "2": ["A39HT"], "3": [5], "4": [1_300_000_000]})
    assert str(guess_columns(table)) == (
        "user '1' (such as 'B0030'), item '2' (such as 'A39HT'), time '4' (such as 1300000000)"
    )


def test_a_third_column_that_is_no_rating_is_refused_with_values() -> None:
    """Such as user, session, item and time, or user, category, item and time."""
    events = [("u1", "s9", 1042, 1_300_000_000), ("u1", "s9", 7, 1_300_000_001)]
    table = pl.DataFrame(events, schema=["1", "2", "3", "4"], orient="row")
    with pytest.raises(InputError) as caught:
        guess_columns(table)
    assert str(caught.value) == (
        "the log: cannot tell which column is the user; which column is the item; which column is "
        "the time; its columns are 1 (such as 'u1'), 2 (such as 's9'), 3 (such as 1042), "
        "4 (such as 1300000000): name them with --user, --item, --time (in Python user=, item=, "
        "time=); four columns are user, item, rating and time if the third has ratings; 4 may be "
        "times"
    )
    given = Columns(user_id="1", item_id="3", timestamp="4")
    assert guess_columns(table, given).columns == given


def test_a_long_value_is_cut_in_a_refusal() -> None:
    table = pl.DataFrame({"1": [1], "2": ["N55689-1 " * 99]})
    with pytest.raises(InputError, match=r"2 \(such as 'N55689-1 .{29}…\): name them with"):
        guess_columns(table)


@pytest.mark.parametrize("name", ["order_number", "Order Seq", "position", "rank_in_session"])
def test_a_column_that_may_be_in_order_of_time_is_named(name: str) -> None:
    table = sample("user_id", "product_id", "price").with_columns(pl.lit(1).alias(name))
    quoted = f"'{name}'" if " " in name else name
    hint = f"if {quoted} is in order of time, --time {quoted} takes it for the time"
    with pytest.raises(InputError, match=hint):
        guess_columns(table)
    with pytest.raises(InputError, match="if its rows are in order of time, --time row-order"):
        guess_columns(table.with_columns(pl.lit("1st").alias(name)))


def test_what_is_given_is_not_guessed() -> None:
    table = sample("customer_id", "sku", "ts", userId=[1])
    columns = guess_columns(table, Columns(user_id="customer_id")).columns
    assert (columns.user_id, columns.item_id, columns.timestamp) == ("customer_id", "sku", "ts")
    swapped = guess_columns(sample("uid", "sku", "ts", asin=[1]), Columns(user_id="sku"))
    assert swapped.columns.item_id == "asin", "a column has one role"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (sample("userId", "sku", "ts", uid=[1]), ["the user, userId or uid", "--user (in Python"]),
        (sample("uid", "sku", "ts", asin=[1]), ["the item, sku or asin"]),
        (sample("uid", "sku", "date", time=[1]), ["the time, date or time"]),
        (sample("uid", "sku", "ts", created_at=[1]), ["the time, ts or created_at"]),
        (sample("uid", "title", "ts"), ["which column is the item;", "uid, title, ts"]),
        (sample("uid", "sku", "price"), ["which column is the time;", "--time row-order takes"]),
        (
            pl.DataFrame({"uid": [1], "sku": [2], "date": ["5 May"]}),
            ["the time (date has neither numbers nor ISO 8601 dates: '5 May')"],
        ),
        (
            pl.DataFrame({"uid": [True], "sku": [2], "ts": [3]}),
            ["the user (uid has neither integers nor text: True)"],
        ),
        (
            pl.DataFrame({"a": [1], "b": [2], "c": [3]}),
            ["--user, --item, --time (in Python user=, item=, time=)"],
        ),
    ],
)
def test_doubts_are_refused(table: pl.DataFrame, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        guess_columns(table, origin="the log")
    for word in ["the log: cannot tell which column is the ", *words]:
        assert word in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "guessed"),
    [
        ([(1, 2, 1_700_000_000)], True),
        ([("a", "b", 4.5, "2024-01-05")], True),
        ([(1, 2, 5, 1_700_000_000), (1, 3, 5, 1_700_000_001)], True),
        ([(1, 2, -1, 1_700_000_000), (1, 3, 10, 1_700_000_001)], True),
        ([("a", "b", "4.5", "2024-01-05")], True),
        ([(1, 2, 2268318, 1_700_000_000)], False),
        ([("a", "b", "c", "2024-01-05")], False),
        ([(1, 2, n, 1_700_000_000 + n) for n in range(50)], False),
        ([(1, 2, 3)], False),
        ([(1_700_000_000, 2, 3)], False),
        ([(1, 1_700_000_000, 1_700_000_000)], False),
        ([(1, 2, 5, 6, 1_700_000_000)], False),
    ],
)
def test_positions_are_guessed_if_only_the_last_is_a_time(rows: list[Any], guessed: bool) -> None:
    table = pl.DataFrame(rows, orient="row")
    table.columns = [str(number) for number in range(1, table.width + 1)]
    if guessed:
        columns = guess_columns(table).columns
        assert (columns.user_id, columns.item_id) == ("1", "2")
        assert columns.timestamp == str(table.width)
    else:
        with pytest.raises(InputError, match="which column is the time"):
            guess_columns(table)


def test_a_source_tells_its_columns_and_a_preparation_logs_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("CustomerID,StockCode,InvoiceDate\n1,2,2024-01-05\n")
    found = find_columns(open_table(path), DataConfig())
    assert found.guessed == {"user": "CustomerID", "item": "StockCode", "time": "InvoiceDate"}
    with caplog.at_level(logging.INFO, "recsys"):
        dataset = prepare(str(path), out=tmp_path / "out")
    line = "log.csv: guessed the columns: user 'CustomerID', item 'StockCode', time 'InvoiceDate'"
    assert line in caplog.text
    assert dataset.config.columns == found.columns
    caplog.clear()
    prepare(str(path), DataConfig(columns=found.columns), tmp_path / "again")
    assert "guessed" not in caplog.text
