"""Readers of the named datasets' files: each returns a log and an item table."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from recsys.shop.simulation import make_shop

Tables = tuple[pl.DataFrame, pl.DataFrame | None]
"""A log and, if there is one, its item table."""


def parquet(log: Path) -> Tables:
    """Read a log without item features."""
    return pl.read_parquet(log), None


def parquet_with_items(log: Path, items: Path) -> Tables:
    """Read a log and an item table."""
    return pl.read_parquet(log), pl.read_parquet(items)


def movielens_100k(log: Path) -> Tables:
    """Read a tab-separated log without a header."""
    names = ["user_id", "item_id", "rating", "timestamp"]
    return pl.read_csv(log, separator="\t", has_header=False, new_columns=names), None


def online_retail(log: Path) -> Tables:
    """Read the purchases of known customers, and the names of the products."""
    lines = pl.read_parquet(log).filter(
        pl.col("CustomerID").is_not_null(),
        ~pl.col("InvoiceNo").str.starts_with("C"),  # a cancellation
        pl.col("Quantity") > 0,
    )
    # Descriptions vary: the most frequent one is the name; ties go to the first in the alphabet.
    items = (
        lines.filter(pl.col("Description").is_not_null())
        .group_by(pl.col("StockCode").alias("item_id"), pl.col("Description").alias("description"))
        .len()
        .sort("len", "description", descending=[True, False])
        .unique("item_id", keep="first", maintain_order=True)
        .drop("len")
        .sort("item_id")
    )
    return lines, items


def online_retail_lines(log: Path) -> Tables:
    """Read all lines, and the names of the products."""
    return pl.read_parquet(log), online_retail(log)[1]


def shop() -> Tables:
    """Simulate the shop."""
    made = make_shop()
    return made.interactions, made.products
