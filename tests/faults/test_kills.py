"""kill -9 before every step that moves, syncs or deletes a file.

The writer runs in a child of a fresh process: the tests' own has threads that a fork would lose.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WRITER = """
import json, sys
from pathlib import Path
from recsys.folders import atomic
from recsys.folders.locks import sole_use
from tests.faults.mortal import killed_at

kind, root = sys.argv[1], Path(sys.argv[2])

def write(text):
    if kind == "file":
        with atomic.new_file(root / "out") as file:
            file.write_text(text)
        return
    with sole_use(root / "out", "writes"), atomic.new_folder(root / "out") as folder:
        for name in "ab":
            (folder / name).write_text(text)
        with atomic.new_folder(folder / "deep") as deep:
            (deep / "c").write_text(text)

def content(path):
    if path.is_file():
        return path.read_text()
    texts = {file.read_text() for file in path.rglob("*") if file.is_file()}
    return texts.pop() if len(texts) == 1 else "a mixture"

write("old")
found, step = [], 1
while killed_at(step, lambda: write("new")):
    atomic.recover(root / "out")
    found.append(content(root / "out"))
    write("old")
    left = sorted(path.name for path in root.iterdir())
    assert left == ["out"], left
    step += 1
assert content(root / "out") == "new"
print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_kill_leaves_the_old_or_the_new(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, kind, str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found) >= 10
    assert set(found) == {"old", "new"}
    assert found == sorted(found, reverse=True)
