"""Rows that may be no interactions are hinted at, with a condition that leaves them out."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.data.engines import Engine
from recsys.data.prepared import prepare
from recsys.data.row_hints import row_hint
from recsys.data.where import keep_where

FRAME = pl.DataFrame({"user_id": [1, 1, 1, 2], "item_id": [1, 2, 3, 1], "timestamp": range(4)})


def test_purchases_among_views_are_hinted_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = FRAME.with_columns(Event=pl.Series(["view", "Purchase", "view", "cart"]))
    with caplog.at_level(logging.INFO, "recsys"):
        prepare(table, out=tmp_path / "out")
    hint = "column 'Event' has view (2), "
    assert hint in caplog.text
    assert "to keep purchases alone: --where \"Event == 'Purchase'\"" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "recsys"):
        prepare(table, out=tmp_path / "out", where="Event == 'Purchase'")
    assert hint not in caplog.text


@pytest.mark.parametrize(
    "kinds", [["view", "cart"], ["purchase", "purchase"], ["buy", "purchase", "view"], [1, 2]]
)
def test_no_hint_where_there_is_nothing_to_choose(kinds: list[Any]) -> None:
    assert row_hint(pl.Series("event", kinds)) is None


@pytest.mark.parametrize(
    ("name", "values", "condition"),
    [
        ("Quantity", ["3", "-1", "NULL"], '--where "Quantity > 0"'),
        ("qty", [3, 0, 1], '--where "qty > 0"'),
        ("quantity", [0.5, -1, 2.25], '--where "quantity > 0"'),
        ("is_click", [0, 1, 1], '--where "is_click = 1"'),
        ("label", ["0", "1", "1"], '--where "label = 1"'),
        ("Order Quantity", [-1, 2, 1], "--where '\"Order Quantity\" > 0'"),
        ("clicked", [False, True, None], '--where "clicked = true"'),
        ("status", ["Complete", "Returned", "Cancelled"], "not in ('Returned', 'Cancelled')"),
        ("event_type", ["cart", "remove_from_cart", "cart"], "not in ('remove_from_cart')"),
    ],
)
def test_rows_that_are_no_interactions_are_hinted_at(
    name: str, values: list[Any], condition: str
) -> None:
    hint = row_hint(pl.Series(name, values))
    assert hint is not None
    assert condition in hint
    table = pl.DataFrame({name: values})
    where = re.findall("--where (['\"])(.*)\\1$", hint)[0][1]
    kept, dropped = keep_where(table, where, "the log")
    assert 0 < len(kept) < 3
    assert len(kept) + dropped == 3
    assert row_hint(kept[name]) is None


@pytest.mark.parametrize(
    ("name", "values"),
    [("Quantity", [1, 2]), ("Quantity", ["a", "-1"]), ("label", [0, 1, 2]), ("price", [-1, 2])],
)
def test_other_numbers_are_no_hint(name: str, values: list[Any]) -> None:
    assert row_hint(pl.Series(name, values)) is None


ODD: dict[str, pl.Series] = {
    "lists": pl.Series([[1], [0], [1], [1]]),
    "structs": pl.Series([{"a": 1}] * 4),
    "bytes": pl.Series([bytes([255])] * 4),
    "objects": pl.Series([object() for _ in range(4)], dtype=pl.Object),
    "spans": pl.Series([1, 0, 1, 1]).cast(pl.Duration),
}


@pytest.mark.parametrize("engine", ["memory", "disk"])
@pytest.mark.parametrize("name", ["quantity", "label", "event"])
@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_a_column_of_another_type_is_no_hint(
    values: pl.Series, name: str, engine: Engine, tmp_path: Path
) -> None:
    table = FRAME.with_columns(values.alias(name))
    found = prepare(table, out=tmp_path / "out", engine=engine, memory=1)
    assert found.manifest.counts["interactions"] == len(table)
