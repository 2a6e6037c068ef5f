"""A log prepared in Spark is, to the byte, the dataset that is prepared in memory and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from recsys.config import Columns, DataConfig, DropRows, GlobalTime
from recsys.data.engines import Engine
from recsys.data.log import read_log
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TINY = 80_000
"""Bytes: 35 to 100 of the rows at a time."""
START = 1_700_000_000
SPREAD = pl.from_epoch((pl.col("timestamp") - START) * 500 + START)
"""The times of a generated log as dates, over days in place of minutes."""
ENGINES: tuple[Engine, ...] = ("memory", "disk", "spark")


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
    drop=(
        DropRows(reason="no item", column="item_id", missing=True),
        DropRows(reason="returns", column="kind", matches="^ret"),
    ),
    where="price > 2.5 and kind <> 'view'",
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
    made = {}
    for engine in ENGINES:
        out = tmp_path / engine
        made[engine] = prepare(str(log), CLEANED, out, ITEMS, USERS, memory=TINY, engine=engine)
    same_files(made["memory"], made["spark"])
    same_files(made["disk"], made["spark"])
    assert {"no item", "returns", "where", "since"} <= made["spark"].manifest.dropped.keys()
    assert made["spark"].item_table["item_id"].dtype == pl.Int64
    assert {path.name for path in tmp_path.iterdir()} == {"my [log] 100%", *made}


def test_files_whose_columns_differ(spark: Any, tmp_path: Path) -> None:
    log = generated_log(text=False).drop("kind")
    third = len(log) // 3
    parts = [
        log[:third].cast({"price": pl.Int64}).drop("line"),
        log[third : 2 * third].cast({"user_id": pl.Float64, "item_id": pl.String}),
        log[2 * third :].cast({"item_id": pl.Float64, "timestamp": pl.Int32}),
    ]
    for part, shop in zip(parts, ("1", "2", "x"), strict=True):
        (tmp_path / "log" / f"shop={shop}").mkdir(parents=True)
        part.write_parquet(tmp_path / "log" / f"shop={shop}" / "part.parquet")
    config = DataConfig(keep=("price", "shop"), where="price is null or price > 2")
    found = [prepare(tmp_path / "log", config, tmp_path / e, engine=e) for e in ENGINES]
    assert found[0].manifest.counts["interactions"] > third
    same_files(found[0], found[1])
    same_files(found[0], found[2])
    for engine in ENGINES:
        with pytest.raises(InputError, match="no column 'line', which other files"):
            prepare(tmp_path / "log", DataConfig(keep=("line",)), tmp_path / "no", engine=engine)


def test_types_that_spark_does_not_bring_together(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    times = pl.from_epoch("timestamp")
    log = generated_log(text=False).with_columns(times)
    log.write_parquet(tmp_path / "log" / "0.parquet")
    log.with_columns(pl.col("timestamp").dt.date()).write_parquet(tmp_path / "log" / "1.parquet")
    with pytest.raises(
        InputError, match="column 'timestamp' cannot be read: is Date and Datetime.*engine='disk'"
    ):
        prepare(tmp_path / "log", out=tmp_path / "data", engine="spark")


def test_the_form_of_dates_is_found_as_in_memory(spark: Any, tmp_path: Path) -> None:
    form = "%d.%m.%Y %H:%M:%S"
    log = generated_log(text=False).with_columns(SPREAD.dt.strftime(form))
    path = write_parts(log, tmp_path / "log")
    found = [prepare(path, out=tmp_path / e, memory=TINY, engine=e) for e in ENGINES]
    assert found[0].config.time_format == form
    same_files(found[0], found[1])
    same_files(found[0], found[2])


@pytest.mark.parametrize("form", ["%Y%m%d", "%Y%m%d%H%M"])
def test_dates_as_numbers_and_text_as_bytes(form: str, spark: Any, tmp_path: Path) -> None:
    log = generated_log(text=False).with_columns(
        SPREAD.dt.strftime(form).cast(pl.Int64),
        pl.format("Ü{}", "user_id").cast(pl.Binary).alias("user_id"),
    )
    path = write_parts(log, tmp_path / "log")
    found = [prepare(path, out=tmp_path / e, memory=TINY, engine=e) for e in ENGINES]
    assert found[0].config.time_format == form
    assert found[0].user_ids.dtype == pl.String
    same_files(found[0], found[1])
    same_files(found[0], found[2])
    number = [prepare(path, out=tmp_path / e, engine=e, time_format="number") for e in ENGINES]
    assert number[0].timestamps.max() == log["timestamp"].max()
    same_files(number[0], number[2])
    write_parts(
        pl.concat([log, log[-1:].with_columns(timestamp=pl.lit(0, pl.Int64))]), tmp_path / "bad"
    )
    messages = {refusal(tmp_path / "bad", tmp_path / "no", engine=engine) for engine in ENGINES}
    assert len(messages) == 1
    assert "'timestamp', data row 301: is neither in the form" in min(messages)


def test_uuids_in_files(spark: Any, tmp_path: Path) -> None:
    """Spark reads none of their type, and as bytes they are refused by every engine."""
    log = generated_log(text=False).to_arrow()
    raw = pa.array([UUID(int=user).bytes for user in log["user_id"].to_pylist()], pa.binary(16))
    for name, users in (("typed", raw.cast(pa.uuid())), ("bytes", raw)):
        pq.write_table(log.set_column(0, "user_id", users), tmp_path / f"{name}.parquet")
    message = refusal(tmp_path / "typed.parquet", tmp_path / "no")
    assert "typed.parquet: column 'user_id': Spark reads no file with the type of UUIDs" in message
    messages = {
        refusal(tmp_path / "bytes.parquet", tmp_path / "no", engine=engine) for engine in ENGINES
    }
    assert len(messages) == 1
    assert "'user_id', data row 1: bytes that are no text" in min(messages)


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
    made = {
        name: prepare(frame, SESSIONS, tmp_path / name, memory=TINY if name == "spark" else None)
        for name, frame in frames.items()
    }
    for name in frames:
        same_files(made["polars"], made[name])
    assert made["spark"].manifest.dropped.keys() == {
        "min_item_interactions",
        "min_user_interactions",
    }


def test_a_frame_of_rows_needs_a_column_that_orders_them(spark: Any, tmp_path: Path) -> None:
    times = pl.from_epoch("timestamp").dt.cast_time_unit("us").dt.replace_time_zone("UTC")
    log = generated_log(text=False).with_columns(times, pl.col("price").cast(pl.Decimal(8, 2)))
    frame = spark.createDataFrame(log.sample(fraction=1, shuffle=True, seed=1).to_arrow())
    with pytest.raises(InputError, match="several interactions at one time") as caught:
        prepare(frame, out=tmp_path / "spark")
    assert "(data.columns.position)" in str(caught.value)
    assert not list(tmp_path.iterdir())
    end = log["timestamp"].sort()[270].isoformat()
    config = DataConfig(
        columns=Columns(position="line"),
        duplicates="last",
        keep=("price", "kind"),
        split=GlobalTime(test_until=end),
    )
    found = prepare(frame, config, tmp_path / "spark")
    same_files(prepare(log, config, tmp_path / "memory"), found)


@pytest.mark.parametrize(
    ("column", "value", "settings"),
    [
        ("timestamp", "soon", {}),
        ("item_id", None, {}),
        ("item_id", "C", {"time_format": "%d.%m.%Y %H:%M:%S"}),  # 7 and 7.0 are text then
        ("kind", "view", {"where": "kind = 'by'"}),
        ("price", "cheap", {"drop": [{"reason": "free", "column": "price", "below": 1}]}),
    ],
)
def test_errors_are_those_of_the_memory(
    spark: Any, column: str, value: str | None, settings: dict[str, Any], tmp_path: Path
) -> None:
    odd = pl.when(pl.int_range(300) == 280).then(pl.lit(value)).otherwise(column).alias(column)
    log = generated_log(text=True).with_columns(pl.col("item_id").str.replace("NULL", "3.0"))
    path = str(write_parts(log.with_columns(odd), tmp_path / "log"))
    messages = []
    engines: tuple[Engine, ...] = ("memory", "spark")
    for engine in engines:
        with pytest.raises(InputError) as caught:
            prepare(path, DataConfig(**settings), tmp_path / "out", engine=engine)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert {file.name for file in tmp_path.iterdir()} == {"log"}


def test_errors_of_spark_are_one_line(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = write_parts(generated_log(text=False), tmp_path / "log")
    frame = spark.read.parquet(str(log))
    for file in log.iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"^the frame: Spark: .*parquet") as caught:
        prepare(frame, out=tmp_path / "out")
    assert "\tat " not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def refusal(
    source: Any, tmp_path: Path, config: DataConfig | None = None, engine: Engine = "spark"
) -> str:
    with pytest.raises(InputError) as caught:
        prepare(source, config, tmp_path / "out", engine=engine)
    assert not (tmp_path / "out").exists()
    return str(caught.value)


def test_what_spark_cannot_do_is_refused_before_any_work(tmp_path: Path) -> None:
    log = generated_log(text=False)
    log.write_csv(tmp_path / "log.csv")
    log.write_parquet(tmp_path / "log.parquet")
    path = str(tmp_path / "log.parquet")
    assert "reads Parquet, whose rows have numbers, not CSV" in refusal(
        str(tmp_path / "log.csv"), tmp_path
    )
    assert "a named dataset fits in memory" in refusal("shop", tmp_path)
    assert "write this frame to Parquet" in refusal(log, tmp_path)
    assert "was read already" in refusal(read_log(log), tmp_path)
    pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")
    assert refusal(path, tmp_path, DataConfig(header=False)).startswith("data.header: ")
    average = DataConfig(where="price > avg(price)")
    assert "data.where 'price > avg(price)': compares a row" in refusal(path, tmp_path, average)


def test_a_frame_of_spark_is_prepared_by_spark(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("u", 1, 2)], "user_id string, item_id int, timestamp int")
    with pytest.raises(InputError, match="engine='disk': a frame of Spark is prepared by Spark"):
        prepare(frame, out=tmp_path / "out", engine="disk")
