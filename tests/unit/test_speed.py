"""Where steps or rankings are slow, an automatic run has shorter epochs and smaller samples."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Candidate, Plan, choose_shared, propose
from recsys.automatic.contender import Contender
from recsys.automatic.facts import LogFacts
from recsys.automatic.run import run_automatically
from recsys.automatic.speed import Speed, for_speed
from recsys.automatic.targets import Targets
from recsys.config import EvaluationConfig, TrackingConfig
from recsys.data.prepared import PreparedDataset, prepare
from recsys.training.module import TrainingModule
from tests.unit.conftest import chains

SLOW = Speed(token=1e-3, ranking=0.05)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(1_500, 30), out=tmp_path_factory.mktemp("data") / "chains")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return Plan("slow", "fast", 0, TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db"))


def candidates_of(dataset: PreparedDataset, plan: Plan) -> list[Candidate]:
    facts = LogFacts.of(dataset)
    return propose(facts, choose_shared(facts), dataset.config, plan)


def test_the_speed_is_that_of_steps_and_rankings(
    dataset: PreparedDataset, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = candidates_of(dataset, plan)
    tokens = candidates[0].experiment.training.batch_tokens
    usual = Speed.measure(candidates, dataset)
    assert usual.token > 0
    assert usual.ranking > 0
    step = TrainingModule.training_step

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return step(*arguments)

    monkeypatch.setattr(TrainingModule, "training_step", slow)
    assert Speed.measure(candidates, dataset).token * tokens > 0.25


def test_a_model_that_cannot_be_trained_has_no_speed(plan: Plan, tmp_path: Path) -> None:
    pairs = prepare(chains(20, 4), out=tmp_path / "pairs")
    experiment = candidates_of(pairs, plan)[0].experiment
    training = experiment.training.model_copy(update={"learning_rate": 1e30})
    spoilt = experiment.model_copy(update={"training": training})
    assert Speed.measure([Candidate("", "", 1.0, spoilt)], pairs) == Speed(0.0, 0.0)


def test_epochs_are_shorter_where_steps_are_slow(dataset: PreparedDataset, plan: Plan) -> None:
    candidate = candidates_of(dataset, plan)[0]
    valid = dataset.holdout("valid")

    def epochs_per_pass(speed: Speed) -> int:
        ready = Contender.ready(candidate, dataset, valid, lambda: 0.0, speed=speed, limit=300)
        return ready.experiment.training.epochs_per_pass

    assert epochs_per_pass(SLOW) > 5 * epochs_per_pass(Speed(1e-5, 0.0))


def test_batches_are_smaller_where_there_is_no_time_for_a_pass(
    dataset: PreparedDataset,
) -> None:
    facts = replace(LogFacts.of(dataset), interactions=10**8)
    usual = choose_shared(facts)
    chosen = {one.setting: one for one in for_speed(usual, SLOW, facts, 3_600)}
    assert chosen["training.batch_tokens"].value == "512"
    assert "too short for a pass" in chosen["training.batch_tokens"].reason
    assert for_speed(usual, Speed(1e-6, 0.0), facts, 3_600) == usual


def test_samples_are_smaller_where_a_model_ranks_slowly(dataset: PreparedDataset) -> None:
    usual = Targets.choose(dataset, EvaluationConfig(), 20.0, 0)
    slow = Targets.choose(dataset, EvaluationConfig(), 20.0, 0, ranking=SLOW.ranking)
    assert len(usual.held_out.valid.targets) == len(usual.held_out.test.targets) == 1_500
    assert slow.sizes[0] == 500  # fewer would leave the choice to chance
    assert len(slow.held_out.valid.targets) == 500


def test_a_run_trains_and_ranks_as_its_speed_allows(
    dataset: PreparedDataset, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Speed, "measure", lambda *_: SLOW)
    run = run_automatically(dataset, plan, Budget(20.0))
    training = run.contenders[0].experiment.training
    assert training.epochs_per_pass > 1
    assert training.batch_tokens == 512
    assert len(run.contenders[0].validation.targets) == 500
