"""``recsys prepare --engine spark`` starts a session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from recsys.config import DataConfig
from recsys.data.prepared import PreparedDataset, prepare

pytestmark = [pytest.mark.spark, pytest.mark.slow]

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
