"""The ids of item and user tables are read by the rules of the log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.config import DataConfig
from recsys.data.appending import append
from recsys.data.prepared import prepare
from recsys.errors import InputError

LOG = pl.DataFrame(
    {"user_id": [1, 1, 1, 2, 2, 2], "item_id": [5, 6, 5, 6, 5, 6], "timestamp": range(6)}
)
COLOURS = ["red", "blue"]


@pytest.mark.parametrize(
    "ids", [[5.0, 6.0, None], [5.0, 6.0, float("nan")], ["5.0", "6.0", "NULL"], [" 5", "6 ", ""]]
)
def test_ids_of_a_table(ids: list[Any], tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": ids, "colour": [*COLOURS, "none"]})
    found = prepare(LOG, out=tmp_path / "data", items=items)
    assert found.item_table.to_dict(as_series=False) == {"item_id": [5, 6], "colour": COLOURS}


def test_ids_of_a_user_table_with_sessions(tmp_path: Path) -> None:
    users = pl.DataFrame({"user_id": [1.0, 2.0], "colour": COLOURS})
    found = prepare(LOG, DataConfig(session_gap=100), tmp_path / "data", users=users)
    assert found.user_table["colour"].to_list() == COLOURS


def test_text_ids_remain_text(tmp_path: Path) -> None:
    """A log with 5.0 and A-1 among its ids has them as text, and so has its table."""
    log = LOG.with_columns(item_id=pl.Series(["5.0", "A-1"] * 3))
    items = pl.DataFrame({"item_id": ["5.0"], "colour": ["red"]})
    found = prepare(log, out=tmp_path / "data", items=items)
    assert found.item_table["colour"].to_list() == ["red", None]


@pytest.mark.parametrize(
    ("ids", "rule"),
    [
        (pl.Series([[5], [6]]), "ids must be integers or text, not List(Int64)"),
        (pl.Series([bytes([255]), b"6"]), "ids must be integers or text, not Binary"),
    ],
)
def test_ids_of_other_types_are_refused(ids: pl.Series, rule: str, tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": ids, "colour": COLOURS})
    prepare(LOG, out=tmp_path / "data")
    told = f"column 'item_id': {re.escape(rule)}"
    with pytest.raises(InputError, match=told):
        prepare(LOG, out=tmp_path / "data", items=items)
    with pytest.raises(InputError, match=told):
        append(LOG.with_columns(pl.col("timestamp") + 9), tmp_path / "data", items=items)
