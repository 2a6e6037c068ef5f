"""Automatic runs that are killed, or stopped by Ctrl-C, after their training."""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from mlflow import MlflowClient

from recsys.automatic.candidates import Plan
from recsys.automatic.fit_log import FittedLog, fit_log
from recsys.automatic.trials import Trials
from recsys.config import TrackingConfig
from recsys.errors import InputError
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.fit import evaluate_and_write
from recsys.model.models import Model
from recsys.serving.bundle import ModelBundle
from recsys.training.refit import Fitted
from tests.unit.conftest import chains

LIMIT = "6s"
DIVERGED = InputError("training diverged in epoch 1: the loss is nan")


class Killed(BaseException):
    pass


@pytest.fixture
def log() -> pl.DataFrame:
    return chains(80, 10, items=30)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return Plan("mine", "fast", 0, TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db"))


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best baseline is the answer at once."""
    monkeypatch.setattr("recsys.automatic.trials.choose_field", raises(DIVERGED))


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def killed_in_the_page(log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("recsys.automatic.fit_log.write_page", raises(Killed()))
        with pytest.raises(Killed):
            fit_log(log, plan, LIMIT)
    assert not (plan.out / "report.html").exists()


def states(plan: Plan) -> dict[str, list[str]]:
    """Return how the runs of each name have ended."""
    client = MlflowClient(plan.tracking.uri)
    found: dict[str, list[str]] = {}
    for run in client.search_runs(["1"]):
        found.setdefault(str(run.info.run_name), []).append(run.info.status)
    return found


def race_of(fitted: FittedLog) -> list[Any]:
    return [
        (one.candidate.name, one.points, one.dropped_in, one.interrupted, one.ended_rising)
        for one in fitted.automatic.contenders
    ]


# --- Kills ---------------------------------------------------------------------------------------


def test_a_run_that_is_killed_while_its_page_is_written_only_writes_the_page(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []

    def kill(*words: Any) -> None:
        written.append(FittedLog(words[1], words[0], Path(), 0.0))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("recsys.automatic.fit_log.write_page", kill)
        with pytest.raises(Killed):
            fit_log(log, plan, LIMIT)
    bundle = (plan.out / "bundle" / "manifest.json").stat().st_mtime_ns
    runs = states(plan)
    with monkeypatch.context() as patch:
        for step in ("tune_baselines", "race", "fit_baseline", "evaluate_and_write"):
            patch.setattr(f"recsys.automatic.trials.{step}", raises(AssertionError(step)))
        again = fit_log(log, plan, LIMIT)
    (first,) = written
    assert again.page.is_file()
    assert again.automatic.answer == first.automatic.answer
    assert again.automatic.run == first.automatic.run
    assert again.automatic.other_runs == first.automatic.other_runs
    assert again.automatic.baselines == first.automatic.baselines
    assert len(race_of(again)) == 2
    assert race_of(again) == race_of(first)
    assert (plan.out / "bundle" / "manifest.json").stat().st_mtime_ns == bundle
    assert states(plan) == runs
    assert not plan.out.with_name(".mine.race").exists()


@pytest.mark.slow
@pytest.mark.parametrize("averages", [False, True])
def test_a_run_that_is_killed_in_the_test_of_its_model_tests_the_same_model(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch, averages: bool
) -> None:
    """There would be no time for its refit after that, nor for a mean."""
    monkeypatch.setattr(Plan, "averages", averages)
    monkeypatch.setattr("recsys.automatic.answer.Naming.__call__", lambda self, _: self.model)
    monkeypatch.setattr("recsys.automatic.contender.PATIENCE", 1)
    monkeypatch.setattr("recsys.automatic.trials.choose_field", lambda *_: None)  # both are raced
    models: list[Model] = []

    def kill(_: object, __: object, ___: object, fitted: Fitted, *____: object) -> None:
        models.append(fitted.model)
        raise Killed

    monkeypatch.setattr("recsys.automatic.averaging.pays", lambda *_: True)
    with monkeypatch.context() as patch:
        patch.setattr("recsys.automatic.trials.evaluate_and_write", kill)
        with pytest.raises(Killed):
            fit_log(log, plan, "240s")
    monkeypatch.setattr("recsys.automatic.trials.tune_baselines", raises(AssertionError()))
    monkeypatch.setattr("recsys.automatic.trials.race", raises(AssertionError()))
    again = fit_log(log, plan, "240s").automatic
    bundle = ModelBundle.open(plan.out / "bundle")
    assert bundle.manifest.protocol.trained_on == ("train", "valid")
    assert len(again.chosen) == (2 if averages else 1)
    kept, tested = models[0].state_dict(), bundle.model.state_dict()
    assert kept.keys() == tested.keys()
    assert all(torch.equal(kept[name], tested[name]) for name in kept)
    assert again.run.best_epoch > 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_models")
def test_a_run_that_is_complete_starts_anew(log: pl.DataFrame, plan: Plan) -> None:
    first, second = fit_log(log, plan, LIMIT), fit_log(log, plan, LIMIT)
    assert first.automatic.run.run_id != second.automatic.run.run_id
    ends = states(plan)  # a busy machine may leave out a baseline in one of them
    assert ends["mine"] == ["FINISHED"] * 2
    assert {end for both in ends.values() for end in both} == {"FINISHED"}


@pytest.mark.slow
@pytest.mark.usefixtures("no_models")
def test_a_run_that_is_killed_among_the_tests_of_baselines_tests_the_others(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_the_third(name: str, *words: Any, **more: Any) -> str:
        if len(states(plan)) == 3:  # the answer and two others
            raise Killed
        return fit_baseline(name, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr("recsys.automatic.trials.fit_baseline", kill_the_third)
        with pytest.raises(Killed):
            fit_log(log, plan, "40s")
    again = fit_log(log, plan, "40s").automatic
    assert len(again.other_runs) == len(again.baselines) - 1 > 2
    assert all(ends == ["FINISHED"] for ends in states(plan).values())


@pytest.mark.slow
@pytest.mark.usefixtures("no_models")
@pytest.mark.parametrize("gone", ["runs/mine", "mlflow.db"])
def test_a_run_whose_results_are_gone_starts_anew(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    killed_in_the_page(log, plan, monkeypatch)
    shutil.rmtree(gone) if Path(gone).is_dir() else Path(gone).unlink()
    assert fit_log(log, plan, LIMIT).page.is_file()


# --- Ctrl-C --------------------------------------------------------------------------------------


def ctrl_c_in_the_test(times: int) -> Callable[..., Any]:
    def evaluate(*words: Any) -> Any:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return evaluate_and_write(*words)

    return evaluate


def test_ctrl_c_in_the_test_of_the_model_ends_the_test_and_leaves_out_the_baselines(
    log: pl.DataFrame,
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="recsys")
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("recsys.automatic.answer.Naming.__call__", lambda self, _: self.model)
    monkeypatch.setattr("recsys.automatic.trials.evaluate_and_write", ctrl_c_in_the_test(1))
    fitted = fit_log(log, plan, LIMIT)
    assert fitted.automatic.winner is not None
    assert fitted.page.is_file()
    assert fitted.automatic.run.test["ndcg_at_10"].mean > 0
    assert not fitted.automatic.other_runs
    assert states(plan) == {"mine": ["FINISHED"]}
    assert any("Ctrl-C again ends the run at once" in line for line in caplog.messages)
    assert any(line.startswith("Ctrl-C: 0 of ") for line in caplog.messages)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
def test_a_second_ctrl_c_in_the_test_ends_the_run_which_resumes(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("recsys.automatic.trials.evaluate_and_write", ctrl_c_in_the_test(2))
        with pytest.raises(KeyboardInterrupt):
            fit_log(log, plan, LIMIT)
    assert not plan.out.exists()
    assert states(plan) == {"mine": ["KILLED"]}
    monkeypatch.setattr("recsys.automatic.trials.tune_baselines", raises(AssertionError()))
    again = fit_log(log, plan, LIMIT)
    assert again.page.is_file()
    assert again.automatic.other_runs


def test_ctrl_c_in_the_test_ends_a_run_that_ctrl_c_has_stopped_before(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(trials: Trials, *_: object) -> None:
        trials.stopped, trials.no_model = True, "Ctrl-C stopped the run"

    def ctrl_c(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trials, "race", stop)
    monkeypatch.setattr("recsys.automatic.trials.fit_baseline_bundle", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        fit_log(log, plan, LIMIT)
