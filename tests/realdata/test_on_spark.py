"""A real log prepared in Spark is, to the byte, the dataset that is prepared in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.config.data import DataConfig
from recsys.data.prepared import prepare

pytestmark = [pytest.mark.realdata, pytest.mark.spark, pytest.mark.slow]


def test_spark_equals_memory(spark: Any, mirror: Path, tmp_path: Path) -> None:
    file = mirror / "ml-1m.parquet"
    config = DataConfig(session_gap=3600, duplicates="last", keep=("rating",))
    memory = prepare(pl.read_parquet(file), config, tmp_path / "memory").path
    in_spark = prepare(spark.read.parquet(str(file)), config, tmp_path / "spark").path
    names = {path.name for path in memory.iterdir()}
    assert names == {path.name for path in in_spark.iterdir()}
    assert "items.npy" in names
    for name in names:
        assert (in_spark / name).read_bytes() == (memory / name).read_bytes(), name
