"""Automatic runs in which something fails, is interrupted, or is killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Plan, choose_shared, propose
from recsys.automatic.contender import Contender
from recsys.automatic.facts import LogFacts
from recsys.automatic.finish import finish
from recsys.automatic.journal import Journal
from recsys.automatic.page import write_page
from recsys.automatic.race import race
from recsys.automatic.run import run_automatically
from recsys.automatic.speed import Speed
from recsys.automatic.targets import Targets
from recsys.automatic.trials import Trials
from recsys.automatic.tuned_baselines import tune_baselines
from recsys.config import TrackingConfig
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.results import Phases
from recsys.serving.bundle import ModelBundle
from tests.unit.conftest import chains

FAST = Speed(token=0.0, ranking=0.0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(80, 10, items=30), out=tmp_path_factory.mktemp("data") / "chains")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return Plan("mine", "fast", 0, TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db"))


def contenders(dataset: PreparedDataset, plan: Plan) -> list[Contender]:
    facts = LogFacts.of(dataset)
    candidates = propose(facts, choose_shared(facts), dataset.config, plan)
    valid = dataset.holdout("valid")
    return [Contender.ready(each, dataset, valid, clock=lambda: 0.0) for each in candidates]


@pytest.fixture
def field(dataset: PreparedDataset, plan: Plan) -> list[Contender]:
    return contenders(dataset, plan)


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def after(validations: int) -> Any:
    return lambda one: len(one.points) >= validations


DIVERGED = InputError("training diverged in epoch 1: the loss is nan")


# --- Models that cannot be trained ---------------------------------------------------------------


def test_if_no_model_can_be_trained_the_best_baseline_is_the_answer(
    dataset: PreparedDataset, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.automatic.contender.train", raises(DIVERGED))
    run = run_automatically(dataset, plan, Budget(30))
    assert run.winner is None
    assert "and no model could be trained." in run.answer
    assert [one.failure for one in run.contenders] == [str(DIVERGED)] * 2
    page = write_page(run, dataset, plan.out, "", Budget(30)).read_text(encoding="utf-8")
    assert page.count(f"not trained: {DIVERGED}") == 2


def test_the_cheapest_is_the_answer_if_those_that_are_raced_fail(
    dataset: PreparedDataset, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left out for want of time."""
    field = contenders(dataset, replace(plan, preset="balanced"))
    cheapest, other, last, unraced = sorted(field, key=lambda one: one.candidate.cost)
    cheapest.dropped_in = unraced.dropped_in = 0
    for one in (other, last):
        monkeypatch.setattr(one, "advance", raises(DIVERGED))
    ranked = race(field, 1.0, lambda _: None)
    assert ranked[0] is cheapest
    assert len(ranked) == 4
    assert cheapest.points


def test_a_refit_that_diverges_leaves_the_model_that_was_validated(
    field: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = field[0]
    one.advance(after(2))
    monkeypatch.setattr(Contender, "refit", raises(DIVERGED))
    finished = finish(one, lambda: 1e6)
    assert finished.fitted.trained_on == ("train",)
    assert finished.fitted.curve.best == one.quality


def test_what_diverges_after_a_validation_is_kept_as_it_was(
    field: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = field
    one.advance(after(1))
    monkeypatch.setattr(one, "advance", raises(DIVERGED))
    monkeypatch.setattr(other, "advance", raises(DIVERGED))
    ranked = race(field, 0.0, lambda _: None)
    assert ranked == [one, other]
    assert one.best is not None
    assert one.exhausted


# --- Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_while_baselines_are_tuned_keeps_the_best_so_far(
    dataset: PreparedDataset, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_of_them(*words: Any) -> Any:
        tuned = tune_baselines(*words)
        yield next(tuned)
        yield next(tuned)
        raise KeyboardInterrupt

    monkeypatch.setattr("recsys.automatic.trials.tune_baselines", two_of_them)
    run = run_automatically(dataset, plan, Budget(1e6))
    assert len(run.baselines) == 2
    assert run.baselines[0].ndcg_at_10 > run.baselines[1].ndcg_at_10
    assert "and Ctrl-C stopped the run before a model was trained." in run.answer
    assert not run.contenders
    assert ModelBundle.open(plan.out).experiment.baseline == run.baselines[0].name


def test_ctrl_c_while_baselines_are_tested_leaves_out_the_others(
    dataset: PreparedDataset, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = fit_baseline
    names = []

    def one_of_them(name: str, *words: Any, **more: Any) -> str:
        names.append(name)
        if len(names) == 2:
            raise KeyboardInterrupt
        return fitted(name, *words, **more)

    monkeypatch.setattr("recsys.automatic.trials.choose_field", raises(DIVERGED))
    monkeypatch.setattr("recsys.automatic.trials.fit_baseline", one_of_them)
    run = run_automatically(dataset, plan, Budget(1e6))
    assert len(run.baselines) > 3
    assert len(run.other_runs) == 1
    page = write_page(run, dataset, plan.out, "", Budget(30))
    assert names[0].replace("_", " ") in page.read_text(encoding="utf-8").replace("_", " ")


# --- Kills ---------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def test_a_run_that_is_killed_among_its_baselines_tunes_the_others(
    dataset: PreparedDataset, plan: Plan, field: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol, targets = field[0].candidate.experiment, dataset.holdout("valid")
    held_out = HeldOutParts(targets, dataset.holdout("test"))
    tuned = []

    def count(*words: Any) -> Any:
        for one in tune_baselines(*words):
            tuned.append(one.name)
            yield one
            if len(tuned) == 2:
                raise Killed

    monkeypatch.setattr("recsys.automatic.trials.tune_baselines", count)
    facts, folder = {"dataset": dataset.fingerprint}, plan.out.with_name(".mine.race")

    def trials() -> Trials:
        return Trials(dataset, held_out, FAST, Budget(1e6), None, lambda _: None, Phases())

    first = Journal(folder, facts)
    with pytest.raises(Killed):
        trials().tune_baselines(protocol, first)
    again = Journal(folder, facts)
    assert again.seconds_spent() > 0
    assert [one.name for one in again.baselines] == tuned
    resumed = trials()
    resumed.tune_baselines(protocol, again)
    assert len(tuned) == len(set(tuned)) == len(resumed.baselines) > 3
    finished = Journal(folder, facts)
    finished.seconds_spent()
    assert finished.has_all_baselines


def test_the_time_of_the_refit_is_noted(
    dataset: PreparedDataset,
    plan: Plan,
    field: list[Contender],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recsys.automatic.journal._NOTE_INTERVAL", 0.0)
    folder, one, budget = plan.out.with_name(".mine.race"), field[0], Budget(1e6)
    journal = Journal(folder, {})
    journal.restore(field)
    one.saved = lambda each: journal.save(each, budget.spent)
    one.goes_on = lambda: journal.note(budget.spent)
    monkeypatch.setattr("recsys.automatic.journal._INTERVAL", 0.0)
    one.advance(after(2))
    before = budget.spent
    one.refit(lambda done: done >= 2)
    assert before < Journal(folder, {}).seconds_spent() < budget.spent
    again, restored = Journal(folder, {}), replace(one, points=[], latest=None, best=None)
    again.restore([restored])
    assert restored.points == one.points
    assert restored.latest is not None
    assert one.latest is not None
    for name, weight in one.latest.checkpoint["state_dict"].items():
        assert torch.equal(weight, restored.latest.checkpoint["state_dict"][name]), name
    again.note(1e6)  # also where nothing was saved since
    assert Journal(folder, {}).seconds_spent() == 1e6


# --- The test targets ----------------------------------------------------------------------------


class Sealed:
    """Test targets whose number may be known, and nothing else."""

    def __init__(self, holdout: Holdout) -> None:
        self.histories = range(len(holdout.histories))


def test_baselines_race_and_refit_do_not_see_the_test_targets(
    dataset: PreparedDataset, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recsys.automatic.contender.PATIENCE", 1)
    monkeypatch.setattr("recsys.automatic.contender._MORE_PATIENCE", 1)
    facts = LogFacts.of(dataset)
    candidates = propose(facts, choose_shared(facts), dataset.config, plan)
    protocol = candidates[0].experiment
    found = Targets.choose(dataset, protocol.evaluation, 1e6, 0)
    sealed: Any = Sealed(found.held_out.test)
    targets = replace(found, held_out=HeldOutParts(found.held_out.valid, sealed))
    budget = Budget(600)  # the models gain nothing more long before
    words = (dataset, targets.held_out, FAST, budget, None, lambda _: None, Phases())
    trials, journal = Trials(*words, averages=True), Journal(plan.out.with_name(".mine.race"), {})
    trials.tune_baselines(protocol, journal)
    trials.race(candidates, journal, targets)
    assert trials.finished is not None
    assert trials.finished.fitted.trained_on == ("train", "valid")
    with pytest.raises(AttributeError, match="'Sealed' object has no attribute"):
        trials.answer(protocol, plan.out)  # the first to look at them
