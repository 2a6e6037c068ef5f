"""A log that Spark reads and filters is, to the byte, the dataset that this process makes alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

from recsys.config import DataConfig, GlobalTime
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
    sizes = [len(log) // 6, len(log) // 2, len(log) - len(log) // 2 - len(log) // 6]
    for number, start in enumerate(np.cumsum([0, *sizes[:-1]])):
        log[int(start) : int(start) + sizes[number]].write_parquet(folder / f"{number}.parquet")
    return folder


def same_files(first: PreparedDataset, second: PreparedDataset) -> None:
    names = {path.name for path in first.path.iterdir()}
    assert {path.name for path in second.path.iterdir()} == names
    for name in sorted(names):
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


def test_files_of_text(spark: Any, tmp_path: Path) -> None:
    """Dates, ids such as 7 and 7.0, missing values, and a folder that looks like a pattern."""
    log = write_parts(generated_log(text=True), tmp_path / "my [log] 100%")
    alone = prepare(str(log), CLEANED, tmp_path / "alone", ITEMS, USERS)
    found = prepare(str(log), CLEANED, tmp_path / "spark", ITEMS, USERS, engine="spark")
    same_files(alone, found)
    assert {"no item", "returns", "where", "since"} <= found.manifest.dropped.keys()
    assert found.item_table["item_id"].dtype == pl.Int64
    assert {path.name for path in tmp_path.iterdir()} == {"my [log] 100%", "alone", "spark"}


def test_a_frame_of_files(spark: Any, tmp_path: Path) -> None:
    """Sessions, a core and rows at one time, whose order is that of the files."""
    log = generated_log(text=False)
    folder = write_parts(log, tmp_path / "log")
    frames = {
        "spark": spark.read.parquet(str(folder)),
        "polars": pl.scan_parquet(folder / "*.parquet"),
        "duckdb": duckdb.sql(f"from read_parquet('{folder}/*.parquet')"),
        "pandas": log.to_pandas(),
    }
    made = {name: prepare(frame, SESSIONS, tmp_path / name) for name, frame in frames.items()}
    for name in frames:
        same_files(made["polars"], made[name])


def test_errors_are_one_line(spark: Any, tmp_path: Path) -> None:
    log = write_parts(generated_log(text=False), tmp_path / "log")
    assert "holds for none of the 300 rows" in refusal(
        str(log), tmp_path, DataConfig(where="kind = 'by'")
    )
    frame = spark.read.parquet(str(log))
    for file in log.iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"^the frame: Spark: .*parquet") as caught:
        prepare(frame, out=tmp_path / "out")
    assert "\tat " not in str(caught.value)


def refusal(source: Any, tmp_path: Path, config: DataConfig | None = None) -> str:
    with pytest.raises(InputError) as caught:
        prepare(source, config, tmp_path / "out", engine="spark")
    assert not (tmp_path / "out").exists()
    return str(caught.value)


def test_conditions_pass_the_same_gate(spark: Any, tmp_path: Path) -> None:
    """Spark has functions that call Java, and subqueries."""
    log = write_parts(generated_log(text=False), tmp_path / "log")
    for where in ("java_method('java.lang.System', 'exit', 3) = 1", "price in (select 1)"):
        assert "data.where" in refusal(str(log), tmp_path, DataConfig(where=where))


def test_what_spark_cannot_do_is_refused_before_any_work(tmp_path: Path) -> None:
    log = generated_log(text=False)
    log.write_csv(tmp_path / "log.csv")
    log.write_parquet(tmp_path / "log.parquet")
    path = str(tmp_path / "log.parquet")
    assert "reads Parquet, whose rows have numbers, not CSV" in refusal(
        str(tmp_path / "log.csv"), tmp_path
    )
    assert "a named dataset fits in memory" in refusal("shop", tmp_path)
    assert "prepares Spark frames and Parquet files" in refusal(log, tmp_path)
    pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")
    assert refusal(path, tmp_path, DataConfig(header=False)).startswith("data.header: ")
    average = DataConfig(where="price > avg(price) over ()")
    assert "compares a row" in refusal(path, tmp_path, average)


QUICK = "--master local[2] --driver-memory 1g --conf spark.sql.shuffle.partitions=2 pyspark-shell"


def test_the_command_prepares(
    tiny_log: pl.DataFrame, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    log, out = tmp_path / "log.parquet", tmp_path / "spark"
    tiny_log.write_parquet(log)
    command = [sys.executable, "-m", "recsys", "prepare", str(log), "--engine", "spark", "--json"]
    environment = os.environ | spark_environment | {"PYSPARK_SUBMIT_ARGS": QUICK}
    ran = subprocess.run(
        [*command, "--out", str(out)], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)[0]["interactions"] == len(tiny_log)
    prepare(str(log), DataConfig(source=str(log)), tmp_path / "memory")
    made = PreparedDataset.open(out).manifest
    assert made == PreparedDataset.open(tmp_path / "memory").manifest
