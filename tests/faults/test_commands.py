"""Whole commands, killed: nothing is lost, and they can be repeated."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from recsys.data.prepared import PreparedDataset
from recsys.folders import sole_use
from recsys.serving.bundle import ModelBundle
from recsys.shop.simulation import make_shop
from tests.faults.commands import finish, kill, start

CONFIG = {
    "name": "mine",
    "model": {"embedding_dim": 8, "feed_forward_dim": 8, "max_sequence_length": 10},
    "training": {"max_epochs": 6, "refit": True, "checkpoint_minutes": 0.001},
    "evaluation": {"seen": "allow", "cutoffs": [10]},
}
AUTOMATIC = ["run", "log.csv", "--name", "automatic", "--preset", "fast", "--time-limit", "20s"]
COMMANDS: list[list[str]] = [
    ["prepare", "log.csv", "--out", "data/log"],
    ["train", "mine.yaml", "--data", "data/log"],
]


def assert_whole(home: Path) -> None:
    for run in home.glob("runs/[!.]*"):
        if run.is_dir() and (run / "bundle").exists():
            ModelBundle.open(run)
    for data in home.glob("data/[!.]*"):
        PreparedDataset.open(data)
    if (home / "mlflow.db").exists():
        with closing(sqlite3.connect(home / "mlflow.db")) as store:
            assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_shop(seed=0, num_customers=60).interactions.write_csv(tmp_path / "log.csv")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


@pytest.mark.slow
def test_a_store_that_was_killed_while_it_was_made_is_made_again(home: Path) -> None:
    assert finish(home, COMMANDS[0])[0] == 0

    def half_made() -> bool:
        return any(path.stat().st_size for path in home.glob(".mlflow.db*/**/mlflow.db"))

    process = start(home, COMMANDS[1])
    while process.poll() is None and not half_made():
        time.sleep(0.01)
    assert process.poll() is None
    kill(process)
    assert_whole(home)
    code, printed = finish(home, COMMANDS[1])
    assert code == 0, printed
    assert_whole(home)


@pytest.mark.slow
def test_an_automatic_run_is_killed_in_its_race(home: Path) -> None:
    """Its state is then damaged, the log replaced, and a second run of its name refused."""
    state = home / "runs" / ".automatic.race" / "state.json"

    def saved() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in state.parent.glob("*.latest")}

    for damage in (b"[1]", b"\xff", None):
        before = saved()
        process = start(home, AUTOMATIC)
        while process.poll() is None and saved() == before:
            time.sleep(0.02)
        assert process.poll() in (None, 0)
        kill(process)
        assert_whole(home)
        if damage is None:  # what is left of a race on another log is not resumed
            make_shop(seed=1, num_customers=60).interactions.write_csv(home / "log.csv")
        elif state.exists():
            state.write_bytes(damage)
    with sole_use(home / "runs" / "automatic", "runs it"):
        code, printed = finish(home, AUTOMATIC)
    assert code == 2
    assert "in use: process" in " ".join(printed.split())
    code, printed = finish(home, AUTOMATIC)
    assert code == 0, printed
    assert_whole(home)
    assert (home / "runs" / "automatic" / "report.html").exists()
    assert not state.parent.exists()
