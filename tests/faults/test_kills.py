"""kill -9 before every step that moves, syncs or deletes a file: of any write, and of an append."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.data.appending import append
from recsys.data.prepared import PreparedDataset, prepare
from tests.helpers.logs import log_of

ROOT = Path(__file__).parents[2]
WRITER = """
import json, sys
from pathlib import Path
from recsys import folders
from recsys.folders import sole_use
from tests.faults.mortal import killed_at

kind, root = sys.argv[1], Path(sys.argv[2])

def write(text):
    if kind == "file":
        with folders.new_file(root / "out") as file:
            file.write_text(text)
        return
    with sole_use(root / "out", "writes"), folders.new_folder(root / "out") as folder:
        for name in "ab":
            (folder / name).write_text(text)
        with folders.new_folder(folder / "deep") as deep:
            (deep / "c").write_text(text)

def content(path):
    if path.is_file():
        return path.read_text()
    texts = {file.read_text() for file in path.rglob("*") if file.is_file()}
    return texts.pop() if len(texts) == 1 else "a mixture"

write("old")
found, step = [], 1
while killed_at(step, lambda: write("new")):
    folders.recover(root / "out")
    found.append(content(root / "out"))
    write("old")
    left = sorted(path.name for path in root.iterdir())
    assert left == ["out"], left
    step += 1
assert content(root / "out") == "new"
print(json.dumps(found))
"""


def run(code: str, *words: object) -> Any:
    command = [sys.executable, "-c", code, *map(str, words)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_kill_leaves_the_old_or_the_new(kind: str, tmp_path: Path) -> None:
    found = run(WRITER, kind, tmp_path)
    assert len(found) >= 10
    assert set(found) == {"old", "new"}
    assert found == sorted(found, reverse=True)


# polars has no threads yet when the process forks: the parent only reads manifests.
APPENDER = """
import json, shutil, sys
from pathlib import Path
from recsys.data.appending import append
from recsys.data.preparation import Manifest
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
    log = log_of([("a", 5, 1), ("a", 3, 2), ("a", 9, 3), ("b", 3, 1), ("b", 5, 4)])
    later = log.with_columns(pl.col("timestamp") + 10, item_id=pl.col("item_id") + 2)
    later.write_csv(tmp_path / "new.csv")
    old, work = tmp_path / "old", tmp_path / "work"
    work.mkdir()
    before = prepare(log, out=old).fingerprint
    prepare(log, out=tmp_path / "whole")
    after = append(str(tmp_path / "new.csv"), tmp_path / "whole").fingerprint
    found, left = run(APPENDER, work, old, tmp_path / "new.csv", 1, budget(8, 1))
    assert len(found) >= 5
    assert {(name, count) for name, count in found} == {(before, 0), (after, 1)}
    assert found == sorted(found, key=lambda state: state[1]), "once it is there, it stays"
    assert left == ["data"]
    assert PreparedDataset.open(work / "data").num_items == 4
