"""Values decide between columns whose names fit a role, and a guess says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.config import Columns, DataConfig
from recsys.data.guess import guess_columns
from recsys.data.reading import find_columns
from recsys.errors import InputError

ROWS = 1_000
KEYS = list(range(ROWS))
"""A number of its own for each row."""
IDS = [f"a{number % 90}" for number in KEYS]
KINDS = ["web", "ios"] * (ROWS // 2)


def log(rows: int = ROWS, /, **columns: Any) -> pl.DataFrame:
    """A log of these columns and of times."""
    given = {name: values[:rows] for name, values in columns.items()}
    return pl.DataFrame({**given, "ts": range(1_700_000_000, 1_700_000_000 + rows)})


def test_the_customer_of_all_orders_is_taken() -> None:
    """At Olist, customer_id is new in every order."""
    found = guess_columns(log(customer_id=KEYS, customer_unique_id=IDS, product_id=IDS))
    assert found.columns.user_id == "customer_unique_id"
    assert guess_columns(log(customer_id=IDS, product_id=IDS)).columns.user_id == "customer_id"


@pytest.mark.parametrize(
    ("columns", "guess"),
    [
        (
            {"user_id": IDS, "app_id": [730] * ROWS, "product_sku": IDS},
            "item 'product_sku' (app_id is 730 in each of 1,000 rows)",
        ),
        (
            {"user_id": ["me"] * ROWS, "session_id": IDS, "sku": IDS},
            "user 'session_id' (user_id is 'me' in each of 1,000 rows)",
        ),
        (
            {"user_id": IDS, "item_id": KEYS, "product_id": IDS},
            "item 'product_id' (item_id differs in each of 1,000 rows)",
        ),
        (
            {"uid": KEYS, "customer_id": IDS, "sku": IDS},
            "user 'customer_id' (uid differs in each of 1,000 rows)",
        ),
        (  # Snowplow
            {"app_id": ["shop"] * ROWS, "domain_userid": IDS, "ti_sku": IDS},
            "user 'domain_userid', item 'ti_sku' (app_id is 'shop' in each of 1,000 rows)",
        ),
        (
            {"client": KINDS, "user": IDS, "sku": IDS},
            "user 'user' (client has 2 values in 1,000 rows, such as 'web')",
        ),
        (
            {"Member": ["yes"] * 600 + ["no"] * 400, "session_id": IDS, "sku": IDS},
            "user 'session_id' (Member has 2 values in 1,000 rows, such as 'yes')",
        ),
        (
            {"user_id": ["NA"] * 600 + IDS[600:], "user_pseudo_id": IDS, "item_id": IDS},
            "user 'user_pseudo_id' (user_id is empty in 600 of 1,000 rows)",
        ),
        (
            {"userId": [None] * ROWS, "sessionId": IDS, "itemId": IDS},
            "user 'sessionId' (userId is empty)",
        ),
        (
            {"userId": [float("nan")] * 990 + [1.0] * 10, "sessionId": IDS, "itemId": IDS},
            "user 'sessionId' (userId is empty in 990 of 1,000 rows)",
        ),
        (
            {"user_id": IDS, "book_id": IDS, "read_at": [""] * 600 + ["2024-01-05"] * 400},
            "time 'ts' (read_at is empty in 600 of 1,000 rows)",
        ),
        (
            {"uid": [None] * ROWS, "client": KINDS, "account_id": IDS, "sku": IDS},
            "user 'account_id' (uid is empty; client has 2 values in 1,000 rows, such as 'web')",
        ),
    ],
)
def test_a_better_name_is_passed_over_for_better_values(
    columns: dict[str, Any], guess: str
) -> None:
    assert guess in str(guess_columns(log(**columns)))


@pytest.mark.parametrize(
    ("columns", "user", "item"),
    [
        # Each row of a large catalogue may have another item.
        ({"user_id": IDS, "item_id": KEYS}, "user_id", "item_id"),
        ({"user_id": KEYS, "sku": KEYS}, "user_id", "sku"),
        ({"user_id": IDS, "item_id": KEYS, "app_id": [730] * ROWS}, "user_id", "item_id"),
        # A refusal of the rows without a user says how to drop them.
        ({"customer_id": [None] * 600 + IDS[600:], "sku": IDS}, "customer_id", "sku"),
        ({"userId": [None] * 400 + IDS[400:], "session": IDS, "sku": IDS}, "userId", "sku"),
        # Names that are sure are taken for what they say.
        ({"customer_id": ["me"] * ROWS, "sku": IDS}, "customer_id", "sku"),
        ({"customer_id": KINDS, "session_id": IDS, "sku": IDS}, "customer_id", "sku"),
        ({"user": KINDS, "item_id": [1] * ROWS}, "user", "item_id"),
    ],
)
def test_the_best_name_is_taken_where_no_values_are_better(
    columns: dict[str, Any], user: str, item: str
) -> None:
    found = guess_columns(log(**columns))
    assert (found.columns.user_id, found.columns.item_id) == (user, item)
    assert "(" not in str(found)


@pytest.mark.parametrize(
    ("columns", "reason", "option"),
    [
        (
            {"user_id": IDS, "app_id": [730] * ROWS},
            "the item (app_id is 730 in each of 1,000 rows; --item app_id takes it all the same)",
            Columns(item_id="app_id"),
        ),
        (
            {"client": KINDS, "sku": IDS},
            "the user (client has 2 values in 1,000 rows, such as 'web'; --user client takes it",
            Columns(user_id="client"),
        ),
    ],
)
def test_the_only_column_is_refused_with_the_way_to_take_it(
    columns: dict[str, Any], reason: str, option: Columns
) -> None:
    with pytest.raises(InputError) as caught:
        guess_columns(log(**columns))
    assert reason in str(caught.value)
    assert guess_columns(log(**columns), option).columns.timestamp == "ts"


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_few_rows_raise_no_doubt_about_equal_or_different_ids(rows: int) -> None:
    few = log(rows, member=["me"] * rows, sku=["hat"] * rows, product=KEYS)
    found = guess_columns(few)
    assert (found.columns.user_id, found.columns.item_id) == ("member", "sku")
    found = guess_columns(log(rows, user_id=IDS, item_id=KEYS, sku=["hat"] * rows))
    assert found.columns.item_id == "item_id"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_doubt_about_the_first_rows_is_settled_by_more_of_them(kind: str, tmp_path: Path) -> None:
    """A log is sorted by user or item, and has many rows of the first."""
    many = 1_500
    sorted_log = pl.DataFrame(
        {
            "member": ["m0"] * many + [f"m{number % 30}" for number in range(many)],
            "product": ["p0"] * many + [f"p{number % 30}" for number in range(many)],
            "asin": [*range(many), *range(many)],
            "parent_asin": [number // 2 for number in range(2 * many)],
            "ts": range(2 * many),
        }
    )
    path = tmp_path / f"log.{kind}"
    for dropped, item in ((["asin", "parent_asin"], "product"), (["product"], "asin")):
        table = sorted_log.drop(dropped)
        _ = table.write_csv(path) if kind == "csv" else table.write_parquet(path)
        columns = find_columns(path).columns
        assert (columns.user_id, columns.item_id) == ("member", item)
    sorted_log.select("member", "parent_asin", "ts").head(many).write_csv(tmp_path / "one.csv")
    with pytest.raises(InputError, match="member is 'm0' in each of 1,500 rows; --user member"):
        find_columns(tmp_path / "one.csv")


def test_a_condition_may_leave_out_the_rows_without_a_user(tmp_path: Path) -> None:
    table = log(user_id=[None] * 600 + IDS[600:], session_id=IDS, sku=IDS)
    assert find_columns(table).columns.user_id == "session_id"
    tested = DataConfig(where="user_id is not null")
    assert find_columns(table, tested).columns.user_id == "user_id"


def test_a_location_is_a_shop_if_there_are_few() -> None:
    shops = log(user_id=IDS, location_id=[number % 4 for number in KEYS])
    with pytest.raises(
        InputError, match="the item \\(location_id has 4 values in 1,000 rows, such as"
    ):
        guess_columns(shops)
    places = log(user_id=IDS, location_id=IDS)
    assert guess_columns(places).columns.item_id == "location_id"


@pytest.mark.parametrize("name", ["dt", "ds"])
@pytest.mark.parametrize("time", ["2024-01-05", 20240105, 1_700_000_000])
def test_a_short_name_of_times(name: str, time: Any) -> None:
    table = pl.DataFrame({"user_id": [1], "sku": [2], name: [time]})
    assert guess_columns(table).columns.timestamp == name


@pytest.mark.parametrize("span", [0.5, 3, "12"])
def test_a_short_name_of_spans_is_refused(span: Any) -> None:
    table = pl.DataFrame({"user_id": [1], "sku": [2], "dt": [span]})
    with pytest.raises(InputError, match=r"the time \(dt has .* and the like; --time dt takes it"):
        guess_columns(table)
    found = guess_columns(table.with_columns(created_on=pl.lit("2024-01-05")))
    assert found.columns.timestamp == "created_on"


def test_a_track_goes_before_its_artist() -> None:
    plays = log(user_id=IDS, artist_id=IDS)
    assert guess_columns(plays).columns.item_id == "artist_id"
    for track in ("track_id", "track", "track_name", "song"):
        found = guess_columns(plays.with_columns(pl.Series(track, IDS)))
        assert found.columns.item_id == track
