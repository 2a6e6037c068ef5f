"""Whole automatic runs: their answers, Ctrl-C at each step, and kills."""

from __future__ import annotations

import json
import logging
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from mlflow import MlflowClient

from recsys.automatic import finish, race
from recsys.automatic.clock import Clock, Speed
from recsys.automatic.page import next_steps
from recsys.automatic.racer import Course, Racer
from recsys.automatic.rules import Plan
from recsys.automatic.run import FittedLog, fit_log, run_automatically
from recsys.automatic.state import State
from recsys.config import (
    AveragedConfig,
    FeatureReaderConfig,
    TrackingConfig,
    load_experiment,
)
from recsys.data.prepared import prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.fit import evaluate_and_write, fit
from recsys.model.averaged import AveragedModel
from recsys.model.models import Model
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.training.refit import Fitted
from tests.conftest import chains

LIMIT, ITEMS = "6s", 40
DIVERGED = InputError("training diverged in epoch 1: the loss is nan")


class Killed(BaseException):
    """A stand-in for kill -9."""


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
    monkeypatch.setattr("recsys.automatic.racer.train", raises(DIVERGED))


@pytest.fixture
def a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best model is the answer, whatever the baselines reach."""
    monkeypatch.setattr(finish, "_judge", lambda trained, *_: (trained.name, ""))


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def killed_in(step: str, log: pl.DataFrame, plan: Plan, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as context:
        context.setattr(step, raises(Killed()))
        with pytest.raises(Killed):
            fit_log(log, plan, LIMIT)
    assert plan.out.with_name(".mine.race").exists()


def ends(plan: Plan) -> dict[str, list[str]]:
    """Return how the runs of each name have ended."""
    names: dict[str, list[str]] = {}
    for run in MlflowClient(plan.tracking.uri).search_runs(["1"]):
        names.setdefault(str(run.info.run_name), []).append(run.info.status)
    return names


def shown(state: State) -> list[Any]:
    return [(e.name, e.points, e.rung, e.outcome, e.chosen) for e in state.racers]


def steps(users: int, length: int, steps: Any, **columns: Any) -> pl.DataFrame:
    """Return histories of items that go on by given steps [U or U × L]."""
    rng = np.random.default_rng(0)
    starts = rng.integers(ITEMS, size=(users, 1))
    items = (starts + np.cumsum(np.broadcast_to(steps, (users, length)), axis=1)) % ITEMS
    times = np.cumsum(rng.integers(1, 90_000, size=items.shape), axis=1).ravel()
    users_of = np.repeat(np.arange(users), length)
    return pl.DataFrame(
        {"user_id": users_of, "item_id": items.ravel(), "timestamp": times, **columns}
    )


# --- Answers -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_wins_where_two_items_tell(plan: Plan) -> None:
    """Each user goes on by a step of their own, which two items tell and one does not."""
    log = steps(400, 10, np.random.default_rng(0).choice([1, 3, 7], size=(400, 1)))
    fitted = fit_log(log, plan, "25s")
    answer, state = fitted.answer, fitted.state
    assert answer.baseline is None
    assert state.racers[0].chosen
    assert answer.run.test["ndcg_at_10"].mean > 0.9
    settings = load_experiment(plan.out / "experiment.yaml")
    assert settings.evaluation.seen == state.choices[0].value
    model = Recommender.load(plan.out / "bundle", fitted.dataset)
    assert len(model.recommend(users=[0, 1], k=3)) == 6
    assert fit(settings, fitted.dataset, Path("again")).test["ndcg_at_10"].mean > 0.8


@pytest.mark.slow
def test_a_kept_event_that_tells_the_next_item_is_used(plan: Plan) -> None:
    moves = {"view": 1, "wish": 7, "buy": 13, "give": 19}
    events = np.random.default_rng(0).choice(list(moves), size=(500, 10))
    after = np.vectorize(moves.get)(events)
    log = steps(500, 10, np.roll(after, 1, axis=1), event=events.ravel())
    fitted = fit_log(log, plan, "30s", keep=["event"])
    # Without the event, the best order of the four next items has .64 (1, .63, .5 and .43).
    assert fitted.answer.run.test["ndcg_at_10"].mean > 0.8
    settings = load_experiment(plan.out / "experiment.yaml")
    assert isinstance(settings.model, FeatureReaderConfig)
    assert [feature.column for feature in settings.model.interaction_features] == ["event"]
    history = pl.DataFrame({"user_id": ["x"], "item_id": [5], "timestamp": [1], "event": ["buy"]})
    model = Recommender.load(plan.out / "bundle", fitted.dataset)
    assert model.recommend(history, k=1)["item_id"].to_list() == [18]


@pytest.mark.slow
def test_a_baseline_that_no_model_beats_is_the_answer(plan: Plan) -> None:
    """Random histories of a few users: there is nothing to learn but what is popular."""
    rng = np.random.default_rng(0)
    items = np.minimum(rng.geometric(0.15, size=(60, 6)), ITEMS).ravel()
    log = steps(60, 6, 0).with_columns(item_id=items)
    fitted = fit_log(log, plan, "3s")
    state, answer = fitted.state, fitted.answer
    assert answer.baseline == state.baselines[0].name
    assert ", a baseline: " in answer.sentence
    assert not any(entry.chosen for entry in state.racers)
    model = Recommender.load(plan.out / "bundle", fitted.dataset)
    assert model.recommend(users=[0], k=3)["source"].unique().to_list() == ["model"]
    settings = load_experiment(plan.out / "experiment.yaml")
    assert settings.baseline == answer.baseline
    again = fit(settings, fitted.dataset, Path("again"))
    assert again.test["ndcg_at_10"] == answer.run.test["ndcg_at_10"]


@pytest.mark.slow
@pytest.mark.usefixtures("a_model")
@pytest.mark.parametrize("better", [True, False])
def test_validation_decides_between_a_mean_and_its_best_member(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch, better: bool
) -> None:
    monkeypatch.setattr(Plan, "averages", True)
    monkeypatch.setattr("recsys.automatic.racer.PATIENCE", 1)
    monkeypatch.setattr(race, "choose_field", lambda *_: None)  # both are raced
    monkeypatch.setattr(race, "_MOST_MEMBERS", 2)
    compared: list[tuple[float, float]] = []

    def decide(mean: float, alone: float) -> bool:
        compared.append((mean, alone))
        return better

    monkeypatch.setattr(finish, "pays", decide)
    fitted = fit_log(log, plan, "60s")
    ((mean, alone),), run = compared, fitted.answer.run
    assert run.valid["ndcg_at_10"].mean == pytest.approx(mean if better else alone)
    bundle = ModelBundle.open(plan.out)
    assert isinstance(bundle.model, AveragedModel) == better
    assert bundle.manifest.protocol.trained_on == ("train", "valid")
    assert [entry.chosen for entry in fitted.state.racers] == [True, better]
    page = fitted.page.read_text(encoding="utf-8")
    for said in (fitted.answer.sentence, page):
        assert f"{mean:.4f}" in said
        assert f"{alone:.4f}" in said
    assert ("averaged with" in fitted.state.racers[0].outcome) == better
    settings = load_experiment(plan.out / "experiment.yaml")
    assert isinstance(settings.model, AveragedConfig) == better


def test_if_no_model_can_be_trained_the_best_baseline_is_the_answer(
    log: pl.DataFrame, plan: Plan, no_models: None
) -> None:
    fitted = fit_log(log, plan, LIMIT)
    assert fitted.answer.baseline
    assert "and no model could be trained." in fitted.answer.sentence
    page = fitted.page.read_text(encoding="utf-8")
    assert page.count(f"not trained: {DIVERGED}") == 2


def test_more_time_is_advised_where_time_ended_the_training(log: pl.DataFrame, plan: Plan) -> None:
    fitted = fit_log(log, plan, "2s")
    state = fitted.state
    assert state.trained is not None
    advice = next_steps(state, fitted.dataset)[0]
    once = len(next(entry for entry in state.racers if entry.points).points) == 1
    assert ("had been validated once" in advice) == once
    state.trained = None
    assert not any("--time-limit" in step for step in next_steps(state, fitted.dataset))


def test_no_step_before_the_answer_looks_at_the_test_targets(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "averages", True)
    monkeypatch.setattr("recsys.automatic.racer.PATIENCE", 1)

    class Sealed:
        """Test targets whose number may be known, and nothing else."""

        def __init__(self, number: int) -> None:
            self.histories = range(number)

    def sealed(held_out: HeldOutParts, *_: object) -> HeldOutParts:
        hidden: Any = Sealed(len(held_out.test.histories))
        return HeldOutParts(held_out.valid, hidden)

    monkeypatch.setattr("recsys.automatic.run.sampled", sealed)
    refits: list[tuple[str, ...]] = []
    refit = Racer.refit

    def note(racer: Racer, until: float) -> Fitted:
        fitted = refit(racer, until)
        refits.append(fitted.trained_on)
        return fitted

    monkeypatch.setattr(Racer, "refit", note)
    with pytest.raises(AttributeError, match="'Sealed' object has no attribute"):
        fit_log(log, plan, "60s")  # in the test of the answer
    assert refits[0] == ("train", "valid")


@pytest.mark.usefixtures("no_models")
def test_a_run_trains_and_ranks_as_its_speed_allows(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Speed(token=1e-3, ranking=1e-4, counting=1e-4)
    monkeypatch.setattr("recsys.automatic.run.measure", lambda *_: slow)
    courses: list[Course] = []
    monkeypatch.setattr(race, "tune_baselines", lambda course, _: courses.append(course))
    monkeypatch.setattr("recsys.automatic.run.tune_baselines", race.tune_baselines)
    dataset = prepare(chains(1_500, 30), out="chains")
    with pytest.raises(InputError, match="diverged"):
        run_automatically(dataset, plan, Clock(20))
    (racer, *_) = courses[0].state.racers
    assert isinstance(racer, Racer)
    training = racer.experiment.training
    assert training.epochs_per_pass > 1
    assert training.batch_tokens == 512
    assert len(courses[0].valid.targets) == 500


# --- Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_while_baselines_are_tuned_keeps_the_best_so_far(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(course: Course, what: str) -> None:
        if what.startswith("baseline 3"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Course, "say", stop)
    fitted = fit_log(log, plan, "100s")
    baselines = fitted.state.baselines
    assert len(baselines) == 2
    assert baselines[0].ndcg_at_10 > baselines[1].ndcg_at_10
    assert "and Ctrl-C stopped the run before a model was trained." in fitted.answer.sentence
    assert ModelBundle.open(plan.out).experiment.baseline == baselines[0].name


def test_ctrl_c_before_any_model_is_validated_keeps_the_best_baseline(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.automatic.racer.train", raises(KeyboardInterrupt()))
    fitted = fit_log(log, plan, LIMIT)
    assert "and Ctrl-C stopped the run before a model was validated." in fitted.answer.sentence
    assert "still rising" not in fitted.page.read_text(encoding="utf-8")


def ctrl_c_in_the_test(times: int) -> Callable[..., Any]:
    def evaluate(*words: Any) -> Any:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return evaluate_and_write(*words)

    return evaluate


@pytest.mark.usefixtures("a_model")
def test_ctrl_c_in_the_test_of_the_model_ends_the_test_and_leaves_out_the_baselines(
    log: pl.DataFrame,
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="recsys")
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(finish, "evaluate_and_write", ctrl_c_in_the_test(1))
    fitted = fit_log(log, plan, LIMIT)
    assert fitted.page.is_file()
    assert fitted.answer.run.test["ndcg_at_10"].mean > 0
    assert not fitted.state.other_runs
    assert ends(plan) == {"mine": ["FINISHED"]}
    assert any("Ctrl-C again ends the run at once" in line for line in caplog.messages)
    assert any(line.startswith("Ctrl-C: 0 of ") for line in caplog.messages)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
@pytest.mark.usefixtures("a_model")
def test_a_second_ctrl_c_in_the_test_ends_the_run_which_resumes(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(finish, "evaluate_and_write", ctrl_c_in_the_test(2))
        with pytest.raises(KeyboardInterrupt):
            fit_log(log, plan, LIMIT)
    assert not plan.out.exists()
    assert ends(plan) == {"mine": ["KILLED"]}
    monkeypatch.setattr("recsys.automatic.run.tune_baselines", raises(AssertionError()))
    again = fit_log(log, plan, LIMIT)
    assert again.page.is_file()
    assert again.state.other_runs


def test_ctrl_c_in_the_test_ends_a_run_that_ctrl_c_has_stopped_before(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("recsys.automatic.racer.train", raises(KeyboardInterrupt()))
    monkeypatch.setattr(finish, "fit_baseline_bundle", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        fit_log(log, plan, LIMIT)


@pytest.mark.usefixtures("no_models")
def test_ctrl_c_while_baselines_are_tested_leaves_out_the_others(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def one_of_them(name: str, *words: Any, **more: Any) -> str:
        names.append(name)
        if len(names) == 2:
            raise KeyboardInterrupt
        return fit_baseline(name, *words, **more)

    monkeypatch.setattr(finish, "fit_baseline", one_of_them)
    fitted = fit_log(log, plan, "100s")
    assert len(fitted.state.baselines) > 3
    assert list(fitted.state.tested) == names[:1]
    assert names[0].replace("_", " ") in fitted.page.read_text(encoding="utf-8").replace("_", " ")


# --- Kills ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("a_model")
def test_a_run_that_is_killed_while_its_page_is_written_only_writes_the_page(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[State] = []

    def kill(state: State, *_: Any) -> None:
        written.append(state)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("recsys.automatic.run.write_page", kill)
        with pytest.raises(Killed):
            fit_log(log, plan, LIMIT)
    manifest, runs = (plan.out / "bundle" / "manifest.json").stat().st_mtime_ns, ends(plan)
    with monkeypatch.context() as patch:
        for step in ("tune_baselines", "race", "answer", "measure"):
            patch.setattr(f"recsys.automatic.run.{step}", raises(AssertionError(step)))
        patch.setattr(finish, "fit_baseline", raises(AssertionError("tested again")))
        again: FittedLog = fit_log(log, plan, LIMIT)
    (first,) = written
    assert again.page.is_file()
    assert again.answer == first.answer
    assert again.state.other_runs == first.other_runs
    assert again.state.baselines == first.baselines
    assert again.state.choices == first.choices
    assert len(shown(again.state)) == 2
    assert shown(again.state) == shown(first)
    assert (plan.out / "bundle" / "manifest.json").stat().st_mtime_ns == manifest
    assert ends(plan) == runs
    assert not plan.out.with_name(".mine.race").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("a_model")
@pytest.mark.parametrize("averages", [False, True])
def test_a_run_that_is_killed_in_the_test_of_its_model_tests_the_same_model(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch, averages: bool
) -> None:
    """There would be no time for its refit after that, nor for a mean."""
    monkeypatch.setattr(Plan, "averages", averages)
    monkeypatch.setattr("recsys.automatic.racer.PATIENCE", 1)
    monkeypatch.setattr(race, "choose_field", lambda *_: None)  # both are raced
    monkeypatch.setattr(race, "_MOST_MEMBERS", 2)
    monkeypatch.setattr(finish, "pays", lambda *_: True)
    models: list[Model] = []

    def kill(_: object, __: object, ___: object, fitted: Fitted, *____: object) -> None:
        models.append(fitted.model)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(finish, "evaluate_and_write", kill)
        with pytest.raises(Killed):
            fit_log(log, plan, "240s")
    for step in ("tune_baselines", "race"):
        monkeypatch.setattr(f"recsys.automatic.run.{step}", raises(AssertionError()))
    again = fit_log(log, plan, "240s")
    bundle = ModelBundle.open(plan.out / "bundle")
    assert bundle.manifest.protocol.trained_on == ("train", "valid")
    assert sum(entry.chosen for entry in again.state.racers) == (2 if averages else 1)
    kept, tested = models[0].state_dict(), bundle.model.state_dict()
    assert kept.keys() == tested.keys()
    assert all(torch.equal(kept[name], tested[name]) for name in kept)
    assert again.answer.run.best_epoch > 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_models")
def test_a_run_that_is_killed_among_the_tests_of_baselines_tests_the_others(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_the_third(name: str, *words: Any, **more: Any) -> str:
        if len(ends(plan)) == 3:  # the answer and two others
            raise Killed
        return fit_baseline(name, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(finish, "fit_baseline", kill_the_third)
        with pytest.raises(Killed):
            fit_log(log, plan, "40s")
    again = fit_log(log, plan, "40s").state
    assert len(again.other_runs) == len(again.baselines) - 1 > 2
    assert all(end == ["FINISHED"] for end in ends(plan).values())
    first = again.chosen_answer.run.run_id
    assert fit_log(log, plan, LIMIT).answer.run.run_id != first  # a complete run starts anew


@pytest.mark.usefixtures("no_models")
@pytest.mark.parametrize(
    "gone", ["runs/mine", pytest.param("its run", marks=pytest.mark.slow), "a bit of the state"]
)
def test_a_state_whose_results_are_gone_or_that_is_damaged_is_not_resumed(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    killed_in("recsys.automatic.run.write_page", log, plan, monkeypatch)
    file = plan.out.with_name(".mine.race") / "state.json"
    first = json.loads(file.read_text())["answer"]["run"]["run_id"]
    if Path(gone).is_dir():
        shutil.rmtree(gone)
    elif gone == "its run":
        MlflowClient(plan.tracking.uri).delete_run(first)
    else:
        file.write_text(file.read_text().replace('"seconds": ', '"seconds": 1', 1))
    fitted = fit_log(log, plan, LIMIT)
    assert fitted.page.is_file()
    assert fitted.answer.run.run_id != first


def test_a_state_of_other_settings_is_not_resumed_and_the_time_spent_is_noted(plan: Plan) -> None:
    state = State.open(plan.out, {"seed": 1}, fresh=False)
    state.note(5.0)
    assert not state.folder.exists()  # before anything has ended
    state.write(12.5)
    state.note(20.0)
    assert State.open(plan.out, {"seed": 1}, fresh=False).seconds == 12.5  # noted a moment ago
    state.written.clear()
    state.note(20.0)
    assert State.open(plan.out, {"seed": 1}, fresh=False).seconds == 20
    for facts, fresh in (({"seed": 2}, False), ({"seed": 1}, True)):
        state.write(12.5)
        assert State.open(plan.out, facts, fresh=fresh).seconds == 0
        assert not state.folder.exists()
