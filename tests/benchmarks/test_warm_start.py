"""Day after day: a warm start on the grown log against training anew, quality and seconds."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from contest import from_environment

import recsys
from recsys.config.data import ChosenTargets, DataConfig, GlobalTime
from recsys.config.experiment import Experiment
from recsys.config.files import load_experiment
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.tables import evaluate
from recsys.experiments.results import Run
from recsys.serving.bundle import ModelBundle, for_evaluation

LOGS = {"online-retail-ii": ("online-retail-ii", None), "ml-1m": ("ml-1m-sasrec", "2000-12-31")}
"""The wholesaler's log and MovieLens-1M: the preset that trains it, and the day that ends the days;
in the later years of MovieLens few users rate anything."""
DAY = 86_400


def days_of(times: np.ndarray, count: int) -> list[int]:
    """Return the starts of the last days with interactions, oldest first, in seconds."""
    return [int(day) * DAY for day in np.unique(times // DAY)[-count:]]


def log_of(dataset: PreparedDataset) -> pl.DataFrame:
    """Return the rows of a prepared log, oldest first."""
    log = dataset.interaction_table.with_columns(timestamp=np.array(dataset.timestamps))
    return log.select("user_id", "item_id", "timestamp").drop_nulls().sort("timestamp")


def known_after(
    log: pl.DataFrame,
    before: int,
    day: int,
    base: Experiment,
    folder: Path,
    days: int = 1,
    targets: ChosenTargets = "first",
) -> PreparedDataset:
    """Prepare what was known some days after a day began, from when on all of it is test.

    The day before is validation. If every interaction is a target, all earlier ones of the user are
    its history; else those before the day are.
    """
    split = GlobalTime(
        kind="global_time",
        valid_from=before,
        test_from=day,
        targets=targets,
        history="advancing" if targets == "every" else "frozen",
    )
    config = DataConfig(split=split, duplicates=base.data.duplicates)
    return recsys.prepare(log.filter(pl.col("timestamp") < day + days * DAY), config, folder)


def facts(run: Run, seconds: float) -> dict[str, Any]:
    """Return what a day's training is judged by."""
    return {
        "bundle": str(run.bundle),
        "ndcg": run.test["ndcg_at_10"].mean,
        "epoch": run.best_epoch,
        "seconds": seconds,
    }


@pytest.mark.benchmark
@pytest.mark.realdata
@pytest.mark.parametrize("name", LOGS)
def test_day_after_day(
    name: str,
    mirror: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The model of the first day is trained anew; each later day both ways, side by side.

    BENCH_DAYS (30) days up to BENCH_UNTIL (a date); BENCH_SET holds changes of the settings,
    separated by blanks; BENCH_ROWS takes the newest rows of the log only. The days that are done
    are in BENCH_OUT, if it names a folder, and are not repeated.
    """
    monkeypatch.setenv("RECSYS_MIRROR", str(mirror))
    work = Path(os.environ.get("BENCH_OUT", tmp_path)).absolute() / name
    work.mkdir(parents=True, exist_ok=True)
    changes = [f"tracking.uri=sqlite:///{work}/mlflow.db", "evaluation.cutoffs=[10]"]
    preset, last = LOGS[name]
    base = load_experiment(preset, changes + os.environ.get("BENCH_SET", "").split())
    undivided = base.data.model_copy(update={"split": DataConfig().split})
    log = log_of(recsys.prepare(name, undivided, work / "log"))
    if end := os.environ.get("BENCH_UNTIL", last):
        log = log.filter(pl.from_epoch("timestamp") < pl.lit(end).str.to_datetime("%Y-%m-%d"))
    log = log.tail(round(from_environment("ROWS", len(log))))
    days = days_of(log["timestamp"].to_numpy(), round(from_environment("DAYS", 30)) + 2)
    plain = base.model_copy(update={"data": DataConfig()})
    record = work / "days.json"
    done: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    before = None
    for number, (previous, day) in enumerate(pairwise(days)):
        if str(day) not in done:
            data = known_after(log, previous, day, base, work / "data" / str(day))
            found = {"anew": train(plain, data, None, work / f"anew-{number}")}
            found["warm"] = found["anew"]
            if before is not None:
                found["warm"] = train(None, data, before, work / f"warm-{number}")
            done[str(day)] = found
            record.write_text(json.dumps(done, indent=1))
        before = done[str(day)]["warm"]["bundle"]
    with capsys.disabled():
        report(name, [done[str(day)] for day in days[2:]])


@pytest.mark.benchmark
@pytest.mark.realdata
@pytest.mark.parametrize(("ahead", "targets"), [(7, "first"), (1, "every")])
@pytest.mark.parametrize("name", LOGS)
def test_on_more_targets(
    name: str,
    ahead: int,
    targets: ChosenTargets,
    mirror: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The models of `test_day_after_day`, in BENCH_OUT, on more than the first of the day.

    That is each user's first interaction of the next seven days, or all of the day.
    """
    monkeypatch.setenv("RECSYS_MIRROR", str(mirror))
    work = Path(os.environ.get("BENCH_OUT", tmp_path)).absolute() / name
    if not (work / "days.json").is_file():
        pytest.skip("BENCH_OUT has no models: run test_day_after_day first")
    done = json.loads((work / "days.json").read_text())
    base = load_experiment(LOGS[name][0])
    log = log_of(PreparedDataset.open(work / "log"))
    days = []
    for before, day in pairwise(map(int, done)):
        folder = tmp_path / str(day)
        data = known_after(log, before, day, base, folder, ahead, targets)
        days.append({way: facts_of_test(found, data) for way, found in done[str(day)].items()})
    with capsys.disabled():
        report(f"{name}, {targets} of {ahead} days", days)
        quick = np.array([done[day]["anew"]["epoch"] <= 4 for day in done][1:])
        for which, some in (("at most 4 epochs", quick), ("more epochs", ~quick)):
            report(f"anew {which}", [day for day, one in zip(days, some, strict=True) if one])


def facts_of_test(found: dict[str, Any], data: PreparedDataset) -> dict[str, Any]:
    """Return the facts of a day's model, with its NDCG@10 on other data."""
    bundle = ModelBundle.open(Path(found["bundle"]))
    mapped = for_evaluation(bundle, data, "test")
    config = bundle.experiment.evaluation
    holdout = find_holdout(mapped, "test", config.request_time)
    table = evaluate(bundle.scorer, holdout, "test", config.seen)
    return {**found, "ndcg": float(table.values("ndcg_at_10").mean())}


def train(
    experiment: Experiment | None, data: PreparedDataset, start: str | None, out: Path
) -> dict[str, Any]:
    """Train one way and time all of it, tests included, which both ways have."""
    started = time.perf_counter()
    run = recsys.train(experiment, data, start=start, out=out)
    return facts(run, time.perf_counter() - started)


def report(name: str, days: list[dict[str, Any]]) -> None:
    """Print the means of all days, and each day."""
    for day in days:
        both = (f"{way} {day[way]['ndcg']:.4f} {day[way]['seconds']:.0f} s" for way in day)
        print(f"\n{name}: {', '.join(both)}", end="")
    ndcg, seconds = (
        {way: np.array([day[way][what] for day in days]) for way in ("anew", "warm")}
        for what in ("ndcg", "seconds")
    )
    difference = ndcg["warm"] - ndcg["anew"]
    error = 1.96 * difference.std(ddof=1) / len(days) ** 0.5 if len(days) > 1 else float("nan")
    print(
        f"\n{name}, {len(days)} days: NDCG@10 anew {ndcg['anew'].mean():.4f}, warm "
        f"{ndcg['warm'].mean():.4f}, difference {difference.mean():+.4f} ± {error:.4f}; seconds a "
        f"day anew {seconds['anew'].mean():.1f}, warm {seconds['warm'].mean():.1f}"
    )
