"""Logs of days whose rows are newest first are warned of: their order within a day is unknown."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.config import Columns, DataConfig
from recsys.data.engines import Engine
from recsys.data.prepared import prepare

WARNS = "its rows are newest first"
DAYS = [20240103, 20240103, 20240102, 20240101] * 2


def log_of(times: list[Any], users: tuple[int, ...] = (1, 1, 1, 1, 2, 2, 2, 2)) -> pl.DataFrame:
    return pl.DataFrame({"user_id": users, "item_id": range(8), "timestamp": times})


@pytest.mark.parametrize("engine", ["memory", "disk"])
@pytest.mark.parametrize(
    "log",
    [
        log_of(DAYS),
        log_of([date(2024, 1, day % 100) for day in DAYS]),
        log_of([f"2024-01-0{day % 100}" for day in DAYS]),
        log_of(sorted(DAYS, reverse=True), (1, 2, 1, 2, 1, 2, 1, 2)),
    ],
    ids=["numbers", "dates", "text", "all users by day"],
)
def test_newest_first(
    log: pl.DataFrame, engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(log, out=tmp_path / "data", engine=engine)
    assert f"{WARNS}, and 2 of them have the day of the user's row before" in caplog.text


@pytest.mark.parametrize("engine", ["memory", "disk"])
@pytest.mark.parametrize(
    "log",
    [
        log_of(sorted(DAYS)),
        log_of([20240103, 20240104, 20240102, 20240102] * 2),
        log_of([20240103] * 8),
        log_of([20240104, 20240103, 20240102, 20240101] * 2),
        log_of([f"2024-01-0{day % 100} 10:00" for day in DAYS]),
        log_of([1_700_000_003, 1_700_000_003, 1_700_000_002, 1_700_000_001] * 2),
    ],
    ids=["oldest first", "in no order", "one day", "no ties", "times of day", "seconds"],
)
def test_other_orders(
    log: pl.DataFrame, engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(log, out=tmp_path / "data", engine=engine)
    assert WARNS not in caplog.text


def test_a_column_that_orders_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = DataConfig(columns=Columns(position="item_id_line"))
    log = log_of(DAYS).with_columns(item_id_line=pl.Series(range(8, 0, -1)))
    prepare(log, config, tmp_path / "data")
    assert WARNS not in caplog.text
