"""A frame that Spark writes is, to the byte, the dataset that this process makes alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

from recsys.config.data import DataConfig, GlobalTime
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

START = 1_700_000_000


def generated_log(rows: int = 300, *, text: bool) -> pl.DataFrame:
    """A log with many interactions of a user at one time, and missing values."""
    rng = np.random.default_rng(9)
    log = pl.DataFrame(
        {
            "user_id": rng.integers(14, size=rows),
            "item_id": (rng.random(rows) ** 2 * 20).astype(int),
            "timestamp": START + rng.integers(60, size=rows) * 10,
            "price": rng.integers(50, size=rows) / 4,
            "kind": rng.choice(["buy", "view", "return"], size=rows),
            "line": rng.permutation(rows),
        }
    )
    none = pl.int_range(rows) % 17 == 5
    log = log.with_columns(price=pl.when(~none).then("price"), kind=pl.when(~none).then("kind"))
    if not text:
        return log
    return log.with_columns(
        pl.format("Ü{}", "user_id").alias("user_id"),
        pl.when(none)
        .then(pl.lit("NULL"))
        .when(pl.int_range(rows) % 3 == 0)
        .then(pl.format("{}", "item_id"))
        .otherwise(pl.format(" {}.0", "item_id"))
        .alias("item_id"),
        pl.when(pl.col("timestamp") % 20 == 0)
        .then(pl.from_epoch("timestamp").dt.strftime("%Y-%m-%d %H:%M:%S"))
        .otherwise(pl.from_epoch("timestamp").dt.strftime("%d.%m.%Y %H:%M:%S"))
        .alias("timestamp"),
        pl.col("price").cast(pl.String),
        pl.col("kind").str.split("e").alias("tags"),
    )


def write_parts(log: pl.DataFrame, folder: Path) -> Path:
    """Write parts whose sizes are not in the order of their names: Spark reads large ones first."""
    folder.mkdir(parents=True)
    for number, (start, end) in enumerate([(0, 50), (50, 200), (200, 300)]):
        log[start:end].write_parquet(folder / f"{number}.parquet")
    return folder


def same_files(first: PreparedDataset, second: PreparedDataset) -> None:
    assert first.manifest.files.keys() == second.manifest.files.keys()
    for name in first.manifest.files:
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes(), name


ITEMS = pl.DataFrame({"item_id": range(15), "name": [f"item {n}" for n in range(15)]})
USERS = pl.DataFrame({"user_id": [f"Ü{n}" for n in range(3, 14)], "age": range(11)})
CLEANED = DataConfig(
    where={
        "no item": "item_id is not null",
        "returns": "kind not like 'ret%'",
        "where": "price > 2.5 and kind <> 'view'",
    },
    keep=("price", "kind", "tags"),
    since="2023-11-14T22:14",
    time_format="%d.%m.%Y %H:%M:%S",
    split=GlobalTime(),
)
SESSIONS = DataConfig(
    session_gap=60, k_core=True, min_user_interactions=3, min_item_interactions=9, keep=("price",)
)


def read(spark: Any, folder: Path) -> Any:
    return spark.read.parquet(f"file://{folder}")


def test_a_log_of_text(spark: Any, tmp_path: Path) -> None:
    """Dates, ids such as 7 and 7.0, and missing values."""
    log = write_parts(generated_log(text=True), tmp_path / "log")
    alone = prepare(str(log), CLEANED, tmp_path / "alone", ITEMS, USERS)
    found = prepare(read(spark, log), CLEANED, tmp_path / "spark", ITEMS, USERS)
    same_files(alone, found)
    assert {"no item", "returns", "where", "since"} <= found.manifest.dropped.keys()
    assert found.item_table["item_id"].dtype == pl.Int64
    assert {path.name for path in tmp_path.iterdir()} == {"log", "alone", "spark"}


def test_frames_of_other_libraries_are_the_same(spark: Any, tmp_path: Path) -> None:
    """Sessions, a core and rows at one time, whose order is that of the files."""
    log = generated_log(text=False)
    folder = write_parts(log, tmp_path / "log")
    frames = {
        "spark": read(spark, folder),
        "polars": pl.scan_parquet(folder / "*.parquet"),
        "duckdb": duckdb.sql(f"from read_parquet('{folder}/*.parquet')"),
        "pandas": log.to_pandas(),
    }
    made = {name: prepare(frame, SESSIONS, tmp_path / name) for name, frame in frames.items()}
    for name in frames:
        same_files(made["polars"], made[name])


def test_refusals_are_one_line(spark: Any, tmp_path: Path) -> None:
    """Spark has functions that call Java, and subqueries."""
    log = write_parts(generated_log(text=False), tmp_path / "log")
    for where, says in (
        ("kind = 'by'", "holds for none of the 300 rows"),
        ("java_method('java.lang.System', 'exit', 3) = 1", "data.where"),
        ("price in (select 1)", "data.where"),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            prepare(read(spark, log), DataConfig(where=where), tmp_path / "out")
    frame = read(spark, log)
    for file in log.iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"^the frame: Spark: .*parquet") as caught:
        prepare(frame, out=tmp_path / "out")
    assert "\tat " not in str(caught.value)
    assert not (tmp_path / "out").exists()
