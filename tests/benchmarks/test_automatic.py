"""What an automatic run reaches on logs of different kinds, within a time limit.

RECSYS_MINUTES (default 10) is the limit of each log; RECSYS_LOGS names some of them, separated by
commas. RECSYS_RESULTS is a folder to keep the runs in, which test_automatic_peers.py compares with;
RECSYS_SEED is the seed (0). The real logs are skipped where the mirror is not.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recsys.automatic.rules import Plan
from recsys.automatic.run import fit_log
from recsys.config.data import DataConfig
from recsys.config.experiment import TrackingConfig
from recsys.config.files import load_experiment
from recsys.data.tables import TableSource
from tests.benchmarks.generated_logs import GENERATED

MINUTES = float(os.environ.get("RECSYS_MINUTES", "10"))
RESULTS = Path(os.environ["RECSYS_RESULTS"]).absolute() if "RECSYS_RESULTS" in os.environ else None
REAL = ("shop", "ml-100k", "ml-1m", "amazon-beauty", "amazon-sports", "online-retail-ii")
WITH_CONFIG = {"online-retail-ii": Path(__file__).parents[2] / "configs/online-retail-ii.yaml"}
"""Logs that are prepared as in a config: rows that are no purchase dropped, split by date."""
LOGS = tuple(filter(None, os.environ.get("RECSYS_LOGS", "").split(","))) or (*REAL, *GENERATED)


@pytest.mark.benchmark
@pytest.mark.parametrize("name", LOGS)
def test_from_a_log_within_its_time(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    run_log(name, name, monkeypatch, request)


def run_log(
    log: str, name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Run `recsys run` on a log under a name, and print its test figures and its race."""
    source: TableSource = log
    config = DataConfig()
    if log in GENERATED:
        source = GENERATED[log]()
    elif log != "shop":
        monkeypatch.setenv("RECSYS_MIRROR", str(request.getfixturevalue("mirror")))
    if log in WITH_CONFIG:
        config = load_experiment(WITH_CONFIG[log]).data
        source = config.source
    tmp_path: Path = request.getfixturevalue("tmp_path")
    folder = tmp_path if RESULTS is None else RESULTS / log
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    seed = int(os.environ.get("RECSYS_SEED", "0"))
    plan = Plan(name, "balanced", seed, TrackingConfig(), fresh=True)
    answer = fit_log(source, plan, 60 * MINUTES, config=config)
    test, seconds = answer.run.test["ndcg_at_10"], answer.context.clock.spent
    raced = ", ".join(
        f"{entry.name} {entry.quality:.4f} ({entry.points[-1].epochs} epochs)"
        for entry in answer.context.racers
        if entry.points
    )
    print(
        f"\n{log}, {name}: test NDCG@10 {test.mean:.4f} [{test.low:.4f}, {test.high:.4f}] in "
        f"{seconds:.0f} of {60 * MINUTES:.0f} s. {answer.sentence} Raced: {raced}."
    )
