"""Memory of recommend --out, side by side for a log and for one that is four times as long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.config import parse_experiment
from recsys.data.prepared import prepare
from recsys.model.build import build_model
from recsys.serving.bundle import ModelBundle

ROWS = int(os.environ.get("RECSYS_BENCHMARK_ROWS", "4000000"))
_RUN = """
import json, resource, sys, time
from recsys.cli import app
start = time.perf_counter()
app(["recommend", *sys.argv[1:], "-k", "10", "--json"], standalone_mode=False)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": time.perf_counter() - start, "mebibytes": peak}), file=sys.stderr)
"""


@pytest.mark.benchmark
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    log = pl.DataFrame({"user_id": np.arange(5_000) // 5, "item_id": np.arange(5_000) % 200})
    dataset = prepare(log.with_row_index("timestamp"), out=tmp_path / "data")
    experiment = parse_experiment({"model": {"embedding_dim": 16, "max_sequence_length": 20}})
    model = build_model(experiment.model, dataset.num_items)
    ModelBundle.write(tmp_path / "bundle", model, experiment, dataset, ("train",))
    measured = {}
    for rows in (ROWS, 4 * ROWS):
        source, out = tmp_path / f"{rows}.parquet", tmp_path / f"{rows}.answer.parquet"
        generator = np.random.default_rng(0)
        users, items = generator.integers(rows // 20, size=rows), generator.integers(200, size=rows)
        long = pl.DataFrame({"user_id": users, "item_id": items}).with_row_index("timestamp")
        long.write_parquet(source, row_group_size=1 << 17)
        arguments = [str(tmp_path / "bundle"), str(source), "--out", str(out)]
        ran = subprocess.run(
            [sys.executable, "-c", _RUN, *arguments], check=True, capture_output=True, text=True
        )
        measured[rows] = json.loads(ran.stderr.splitlines()[-1])
    print(measured)
    small, large = (one["mebibytes"] for one in measured.values())
    assert large < 1.5 * small
