"""Logs written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

COLUMNS = ["user_id", "item_id", "timestamp"]


def log_of(rows: Iterable[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=COLUMNS, orient="row")


def log_of_columns(users: Any, items: Any, times: Any) -> pl.DataFrame:
    return pl.DataFrame(dict(zip(COLUMNS, (users, items, times), strict=True)))


def log_of_histories(histories: Mapping[Any, Iterable[Any]], start: int = 0) -> pl.DataFrame:
    return log_of(
        (user, item, time)
        for user, items in histories.items()
        for time, item in enumerate(items, start)
    )


WALKS = log_of((user, (user + step) % 6, step) for user in range(20) for step in range(5))
"""Everybody takes six items in turn."""
