"""Real logs prepared in Spark are, to the byte, the datasets that are prepared in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.config import Columns, DataConfig
from recsys.data.prepared import prepare

pytestmark = [pytest.mark.realdata, pytest.mark.spark, pytest.mark.slow]

LOGS = {
    "ml-1m": DataConfig(session_gap=3600, duplicates="last", keep=("rating",)),
    "amazon-beauty": DataConfig(
        columns=Columns(timestamp="position"),
        k_core=True,
        min_user_interactions=6,
        min_item_interactions=6,
    ),
    "amazon-sports": DataConfig(columns=Columns(timestamp="position"), min_item_interactions=7),
}


@pytest.mark.parametrize("name", LOGS)
def test_spark_equals_memory_and_duckdb(
    name: str, spark: Any, mirror: Path, tmp_path: Path
) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: the extra test")
    file = mirror / f"{name}.parquet"
    frames = {
        "memory": pl.read_parquet(file),
        "duckdb": duckdb.sql(f"from read_parquet('{file}')"),
        "spark": spark.read.parquet(str(file)),
    }
    made = {
        engine: prepare(frame, LOGS[name], tmp_path / engine, memory="100MB")
        for engine, frame in frames.items()
    }
    names = {path.name for path in made["memory"].path.iterdir()}
    assert "items.npy" in names
    for engine, dataset in made.items():
        assert {path.name for path in dataset.path.iterdir()} == names, engine
        for file_name in names:
            expected = (made["memory"].path / file_name).read_bytes()
            assert (dataset.path / file_name).read_bytes() == expected, (engine, file_name)
