"""kill -9 before every step of an append that moves, syncs or deletes a file: nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from recsys.data.appending import append
from recsys.data.prepared import PreparedDataset, prepare

ROOT = Path(__file__).parents[2]
# polars has no threads yet when the process forks: the parent only reads manifests.
APPENDER = """
import json, shutil, sys
from pathlib import Path
from recsys.data.appending import append
from recsys.data.manifest import Manifest
from tests.faults.mortal import killed_at

root, old, new = (Path(name) for name in sys.argv[1:4])
data, first, every = root / "data", int(sys.argv[4]), int(sys.argv[5])

found, step = [], first
while True:
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(old, data)
    killed = killed_at(step, lambda: append(str(new), data))
    manifest = Manifest.read(data)
    manifest.verify(data)
    found.append([manifest.fingerprint, len(manifest.appended)])
    if not killed:
        break
    step += every
print(json.dumps([found, sorted(path.name for path in root.iterdir())]))
"""


@pytest.mark.slow
def test_a_kill_leaves_the_dataset_before_or_after_the_append(
    tmp_path: Path, budget: Callable[[int, int], int]
) -> None:
    rows = [("a", 5, 1), ("a", 3, 2), ("a", 9, 3), ("b", 3, 1), ("b", 5, 4)]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    later = log.with_columns(pl.col("timestamp") + 10, item_id=pl.col("item_id") + 2)
    later.write_csv(tmp_path / "new.csv")
    old, work = tmp_path / "old", tmp_path / "work"
    work.mkdir()
    before = prepare(log, out=old).fingerprint
    prepare(log, out=tmp_path / "whole")
    after = append(str(tmp_path / "new.csv"), tmp_path / "whole").fingerprint
    command = [sys.executable, "-c", APPENDER, str(work), str(old), str(tmp_path / "new.csv")]
    command += ["1", str(budget(8, 1))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found, left = json.loads(result.stdout)
    assert len(found) >= 5
    assert {(name, count) for name, count in found} == {(before, 0), (after, 1)}
    assert found == sorted(found, key=lambda state: state[1]), "once it is there, it stays"
    assert left == ["data"]
    assert PreparedDataset.open(work / "data").num_items == 4
