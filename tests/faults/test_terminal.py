"""Ids that steer a terminal, and signals to the commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient

from recsys.config.experiment import TrackingConfig
from recsys.console import show_frame
from recsys.data.prepared import prepare
from recsys.tracking.store import open_store
from tests.faults.commands import start
from tests.helpers.logs import log_of_histories

STEERING = "a\x1b[2J\x1b]0;owned\x07b\rc\nd"
ITEMS = ["=1+1", "@SUM(A1)", "-hat", STEERING]
LOG = log_of_histories({STEERING: ITEMS, "u": ITEMS})


def test_no_id_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_frame(LOG)
    printed = capsys.readouterr().out
    assert "a?[2J?]0;owned?b?c?d" in printed
    assert printed.replace("\n", "").isprintable()


@pytest.mark.slow
def test_a_sigterm_while_baselines_are_fitted_closes_the_run(tmp_path: Path) -> None:
    users = np.repeat(np.arange(4_000), 12)
    items = np.random.default_rng(0).integers(0, 6_000, len(users))
    columns = {"user_id": users, "item_id": items, "timestamp": np.arange(len(users))}
    prepare(pl.DataFrame(columns), out=tmp_path / "data")
    where = TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")
    open_store(where)
    (tmp_path / "mine.yaml").write_text("{name: mine, baseline: ease, evaluation: {seen: allow}}")
    process = start(tmp_path, ["train", "mine.yaml", "--data", "data"])
    client = MlflowClient(where.absolute_uri)
    # With its settings: a run that is being created has nobody yet who would close it.
    while not (runs := client.search_runs(["1"])) or not runs[0].data.params:
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1)  # then the baseline is being fitted, which takes seconds
    process.send_signal(signal.SIGTERM)
    log, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, log
    assert client.get_run(runs[0].info.run_id).info.status == "KILLED"


def test_ctrl_c_while_the_commands_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words, environment = [sys.executable, "-m", "recsys"], os.environ | {"PYTHONPATH": path}
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (128 + signal.SIGINT, "", "")
