"""Whole automatic runs: their answers, Ctrl-C at each step, and kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from mlflow import MlflowClient

from recsys.automatic import race, run
from recsys.automatic.clock import Speed
from recsys.automatic.racer import Context, Racer, State
from recsys.automatic.rules import Plan
from recsys.automatic.run import fit_log
from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.files import load_experiment
from recsys.config.model import AveragedConfig, FeatureReaderConfig
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.fit import FinalScorer, fit
from recsys.experiments.results import Run
from recsys.folders import BusyError, sole_use
from recsys.model.models import AveragedModel, Model
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.training.loop import Fitted
from tests.conftest import chains
from tests.helpers.killed import Killed

ITEMS = 40
FAULT = IndexError("index 75 is out of bounds")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    return chains(80, 10, items=30)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return Plan("mine", "fast", 0, TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No speed is measured, and each step validated."""
    monkeypatch.setattr("recsys.automatic.run.measure", lambda *_: Speed(1e3, 1e-9, 1e-9))


@pytest.fixture
def a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models are raced, soon exhausted, and averaged."""
    monkeypatch.setattr("recsys.automatic.racer.PATIENCE", 1)
    monkeypatch.setattr(race, "choose_field", lambda racers, _: racers)
    monkeypatch.setattr(race, "_GAIN_OF_MEAN", -1.0)
    monkeypatch.setattr("recsys.automatic.rules._NUM_KINDS", {"balanced": 2})


# --- Answers -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_wins_where_a_kept_event_tells_the_next_item(plan: Plan) -> None:
    moves, rng = {"view": 1, "wish": 7, "buy": 13, "give": 19}, np.random.default_rng(0)
    events = rng.choice(list(moves), size=(500, 10))
    steps = np.roll(np.vectorize(moves.get)(events), 1, axis=1)
    items = (rng.integers(ITEMS, size=(500, 1)) + np.cumsum(steps, axis=1)) % ITEMS
    log = chains(500, 10).with_columns(item_id=items.ravel(), event=events.ravel())
    fitted = fit_log(log, plan, "30s", keep=["event"])
    # Without the event, the best order of the four next items has .64 (1, .63, .5 and .43).
    assert fitted.run.test["ndcg_at_10"].mean > 0.8
    assert fitted.experiment.baseline is None
    assert any(racer.won for racer in fitted.context.racers)
    settings = load_experiment(plan.out / "experiment.yaml")
    assert settings.evaluation.seen == "allow"
    assert isinstance(settings.model, FeatureReaderConfig)
    assert [feature.column for feature in settings.model.interaction_features] == ["event"]
    history = pl.DataFrame({"user_id": ["x"], "item_id": [5], "timestamp": [1], "event": ["buy"]})
    model = Recommender.load(plan.out / "bundle", fitted.context.dataset)
    assert model.recommend(history, k=1)["item_id"].to_list() == [18]
    assert fit(settings, fitted.context.dataset, Path("again")).test["ndcg_at_10"].mean > 0.8


@pytest.mark.usefixtures("quick")
def test_a_baseline_that_no_model_beats_is_the_answer(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_GAIN", 1e9)  # by chance a model may win on a small log
    monkeypatch.setattr("recsys.automatic.racer.PATIENCE", 1)
    (plan.beaten / "notes").mkdir(parents=True)
    with pytest.raises(InputError, match="mine-model: is left alone: notes does not belong"):
        fit_log(log, plan, "100s")
    plan.beaten.joinpath("notes").rmdir()
    with sole_use(plan.beaten, "trains it"), pytest.raises(BusyError, match="which trains it"):
        fit_log(log, plan, "100s")
    assert not Path("data", "mine").exists()  # the other process may need the one that is there
    fitted = fit_log(log, plan, "100s")
    assert fitted.experiment.baseline == fitted.context.state.baselines[0].name
    assert ", a baseline: " in fitted.sentence
    assert not any(racer.won for racer in fitted.context.racers)
    found = MlflowClient(plan.tracking.uri).search_runs(["1"])
    assert {run.info.run_name for run in found} >= {"mine", "mine-model"}
    assert ModelBundle.open("runs/mine-model").trained is not None
    model = Recommender.load(plan.out / "bundle", fitted.context.dataset)
    assert model.recommend(users=[log["user_id"][0]], k=3)["source"].unique().to_list() == ["model"]
    settings = load_experiment(plan.out / "experiment.yaml")
    assert settings.baseline == fitted.experiment.baseline
    again = fit(settings, fitted.context.dataset, Path("again"))
    assert again.test["ndcg_at_10"] == fitted.run.test["ndcg_at_10"]


@pytest.mark.usefixtures("quick")
def test_if_no_model_can_be_trained_the_best_baseline_is_the_answer(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.automatic.racer.train", Mock(side_effect=FAULT))
    fitted = fit_log(log, plan, "100s")
    baselines = fitted.context.state.baselines
    assert fitted.experiment.baseline == baselines[0].name
    assert len(fitted.other_runs) == len(baselines) - 1
    assert "and no model could be trained." in fitted.sentence
    assert f"not trained: IndexError: {FAULT}" in (plan.out / "report.html").read_text(
        encoding="utf-8"
    )
    assert not plan.out.with_name(".mine.race").exists()


@pytest.mark.usefixtures("quick", "a_mean")
def test_no_step_before_the_answer_looks_at_the_test_targets(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sealed:
        """Test targets whose number may be known, and nothing else."""

        def __init__(self, number: int) -> None:
            self.histories = range(number)

    def sealed(_: object, held_out: HeldOutParts, *__: object) -> HeldOutParts:
        hidden: Any = Sealed(len(held_out.test.histories))
        return HeldOutParts(held_out.valid, hidden, held_out.valid)

    monkeypatch.setattr("recsys.automatic.clock.Speed.sample", sealed)
    refits: list[tuple[str, ...]] = []
    refit = Racer.refit

    def note(racer: Racer, until: float) -> Fitted:
        fitted = refit(racer, until)
        refits.append(fitted.trained_on)
        return fitted

    monkeypatch.setattr(Racer, "refit", note)
    with pytest.raises(AttributeError, match="'Sealed' object has no attribute"):
        fit_log(log, Plan(plan.name, "balanced", 0, plan.tracking), "60s")  # in its test
    assert refits == [("train", "valid")] * 2


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("step", ["baseline 3", "rung 1"])
def test_ctrl_c_before_any_model_is_validated_keeps_the_best_baseline(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def stop(_: Context, what: str) -> None:
        if what.startswith(step):
            raise KeyboardInterrupt

    names: list[str] = []

    def two_of_them(experiment: Experiment, *words: Any, **more: Any) -> Run:
        names.append(str(experiment.baseline))
        if len(names) == 3:  # the answer, and another one
            raise KeyboardInterrupt
        return fit_baseline(experiment, *words, **more)

    monkeypatch.setattr(Context, "say", stop)
    monkeypatch.setattr(run, "fit_baseline", two_of_them)
    fitted = fit_log(log, plan, "100s")
    first, second, *others = fitted.context.state.baselines
    assert first.ndcg_at_10 >= second.ndcg_at_10
    assert "and Ctrl-C came before a model was validated." in fitted.sentence
    assert ModelBundle.open(plan.out).experiment.baseline == first.name == names[0]
    assert len(fitted.other_runs) == 1  # a later one leaves out the other baselines
    assert bool(others) == (step == "rung 1")
    page = (plan.out / "report.html").read_text(encoding="utf-8").replace("_", " ")
    assert all(name.replace("_", " ") in page for name in names[:2])


# --- Kills ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "a_mean")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
def test_a_run_that_ends_in_its_test_tests_the_same_model_when_it_is_started_again(
    log: pl.DataFrame, plan: Plan, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    models: list[Model] = []

    def end(final: FinalScorer, *_: object) -> None:
        models.append(final.fitted.model)
        raise error

    plan = Plan(plan.name, "balanced", 0, plan.tracking)
    monkeypatch.setattr(run, "_GAIN", -1.0)  # the model is the answer
    with monkeypatch.context() as patch:
        patch.setattr(run, "evaluate_and_write", end)
        with pytest.raises(error):
            fit_log(log, plan, "240s")
    assert not plan.out.exists()
    assert plan.out.with_name(".mine.race").exists()
    monkeypatch.setattr(Racer, "_keep", Mock(side_effect=AssertionError("trained")))
    again = fit_log(log, plan, "240s")
    bundle = ModelBundle.open(plan.out / "bundle")
    assert isinstance(bundle.model, AveragedModel)
    assert isinstance(load_experiment(plan.out / "experiment.yaml").model, AveragedConfig)
    assert bundle.manifest.trained_on == ("train", "valid")
    assert [racer.won for racer in again.context.racers] == [True, True]
    first, tested = models[0].state_dict(), bundle.model.state_dict()
    assert first.keys() == tested.keys()
    assert all(torch.equal(first[name], tested[name]) for name in first)
    page = (plan.out / "report.html").read_text(encoding="utf-8")
    assert "of the mean of" in page
    assert "averaged with" in again.context.racers[0].outcome


def test_a_state_that_is_damaged_or_of_other_settings_is_not_resumed(plan: Plan) -> None:
    def seconds(*, seed: int = 1, fresh: bool = False) -> float:
        return State.open(plan.out, {"seed": seed}, fresh=fresh).seconds

    state = State.open(plan.out, {"seed": 1}, fresh=False)
    file = state.folder / "state.json"
    state.write(12.5)
    assert seconds() == 12.5
    for number, damage in enumerate(("[1]", file.read_text().replace("12.5", "1.5"), None, None)):
        state.write(12.5)
        if damage:
            file.write_text(damage)
        assert seconds(seed=2 if number == 2 else 1, fresh=number == 3) == 0
        assert not state.folder.exists()
