"""The automatic run: facts, the rule, the race, the refit, the journal, the answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from recsys.automatic.averaging import Averaging, hold
from recsys.automatic.budget import Budget, parse_time_limit
from recsys.automatic.candidates import (
    Plan,
    Preset,
    choose_seen,
    choose_shared,
    choose_sizes,
    propose,
)
from recsys.automatic.contender import Contender
from recsys.automatic.facts import LogFacts, Machine
from recsys.automatic.finish import finish
from recsys.automatic.journal import Journal
from recsys.automatic.page import _outcome, next_steps, write_page
from recsys.automatic.race import FEWEST, _is_over, choose_field, race
from recsys.automatic.run import run_automatically
from recsys.automatic.targets import Targets
from recsys.automatic.tuned_baselines import tune_baselines
from recsys.config import (
    CountEnsembleConfig,
    DataConfig,
    EvaluationConfig,
    NextItemConfig,
    TrackingConfig,
    load_experiment,
)
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables import evaluate
from recsys.experiments.baselines import baselines_of
from recsys.experiments.count_weights import choose_count_ensemble, fit_count_ensemble
from recsys.experiments.fit import fit
from recsys.inference.scorer import Scorer
from recsys.model.models import Model
from recsys.reports.run_page import RacePoint
from recsys.serving.recommender import Recommender
from recsys.training.curve import Curve
from tests.unit.conftest import chains

ITEMS = 40


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(150, 12), out=tmp_path_factory.mktemp("data") / "chains")


@pytest.fixture
def tracking(tmp_path: Path) -> TrackingConfig:
    return TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")


def contenders(
    dataset: PreparedDataset, tracking: TrackingConfig, preset: Preset = "fast"
) -> list[Contender]:
    facts = LogFacts.of(dataset)
    candidates = propose(
        facts, choose_shared(facts), dataset.config, Plan("test", preset, 0, tracking)
    )
    valid = dataset.holdout("valid")
    return [Contender.ready(each, dataset, valid, clock=lambda: 0.0) for each in candidates]


def after(validations: int) -> object:
    return lambda one: len(one.points) >= validations


# --- Facts ---------------------------------------------------------------------------------------


def test_facts_are_those_of_the_training_part(tmp_path: Path) -> None:
    log = pl.DataFrame(
        {
            "user_id": ["a"] * 5 + ["b"] * 4,
            #            ------ train ----- valid test
            "item_id": ["x", "x", "y", "z", "z", "x", "y", "z", "x"],
            "timestamp": [0, 0, 50, 51, 52, 5, 9, 10, 11],
        }
    )
    facts = LogFacts.of(prepare(log, out=tmp_path / "data"))
    assert (facts.users, facts.items, facts.interactions) == (2, 3, 5)
    assert facts.repeat_share == pytest.approx(1 / 3)  # x after x, of three later interactions
    assert facts.interactions_per_item == pytest.approx(5 / 3)


def test_sequence_numbers_are_not_taken_for_times(tmp_path: Path) -> None:
    numbered = chains(20, 8).with_columns(timestamp=pl.Series(list(range(8)) * 20))
    assert not LogFacts.of(prepare(numbered, out=tmp_path / "numbers")).has_times
    assert LogFacts.of(prepare(chains(20, 8), out=tmp_path / "times")).has_times


def test_older_interactions_of_long_histories_are_trained_on(tmp_path: Path) -> None:
    """Else a fourth of the log would be."""
    facts = LogFacts.of(prepare(chains(5, 802), out=tmp_path / "long"))
    assert facts.newest_share == 0.25
    windows = next(one for one in choose_sizes(facts) if one.setting == "training.windows")
    assert windows.value == "all"
    assert "25% of all" in windows.reason
    short = LogFacts.of(prepare(chains(5, 302), out=tmp_path / "short"))
    assert "training.windows" not in settings_of(short)


def test_held_out_purchases_change_no_choice(dataset: PreparedDataset, tmp_path: Path) -> None:
    """The same log with other validation and test targets has the same facts and settings."""
    log = chains(150, 12)
    last = pl.int_range(pl.len()).over("user_id") >= 10
    other = log.with_columns(
        item_id=pl.when(last).then((pl.col("item_id") * 7 + 3) % ITEMS).otherwise("item_id")
    )
    changed = LogFacts.of(prepare(other, out=tmp_path / "other"))
    assert changed == LogFacts.of(dataset)


def test_machine_is_described() -> None:
    machine = Machine.here()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert "GiB" in str(machine)


# --- The rule ------------------------------------------------------------------------------------

USUAL = LogFacts(
    users=5_000,
    items=3_000,
    interactions=800_000,
    long_length=900,
    repeat_share=0.0,
    has_times=True,
)


def settings_of(facts: LogFacts) -> dict[str, str]:
    return {choice.setting: choice.value for choice in choose_sizes(facts)}


def test_sizes_follow_from_the_facts() -> None:
    large, small = (
        settings_of(USUAL),
        settings_of(replace(USUAL, interactions=20_000, long_length=27)),
    )
    assert (large["model.embedding_dim"], small["model.embedding_dim"]) == ("128", "48")
    assert (large["model.max_sequence_length"], small["model.max_sequence_length"]) == ("200", "30")
    assert float(large["model.dropout"]) < float(small["model.dropout"])
    assert int(large["training.batch_tokens"]) > int(small["training.batch_tokens"])


def test_every_choice_has_a_reason() -> None:
    assert all(choice.reason for choice in [choose_seen(USUAL), *choose_sizes(USUAL)])


def test_repeats_decide_about_seen_items() -> None:
    assert choose_seen(USUAL).value == "filter"
    often = choose_seen(replace(USUAL, repeat_share=0.3))
    assert often.value == "allow"
    assert "30.0%" in often.reason


def test_a_large_catalogue_is_sampled(tracking: TrackingConfig) -> None:
    facts = replace(USUAL, items=200_000)
    candidates = propose(facts, choose_shared(facts), DataConfig(), Plan("x", "fast", 0, tracking))
    assert {one.experiment.training.loss.kind for one in candidates} == {"sampled_softmax"}


@pytest.mark.parametrize("sparse", [True, False])
def test_a_sparse_log_gets_a_filter_and_keeps_seen_items_in_the_loss(
    tracking: TrackingConfig, sparse: bool
) -> None:
    facts = replace(USUAL, interactions=100_000) if sparse else USUAL
    plan = Plan("x", "best", 0, tracking)
    raced = {one.name: one for one in propose(facts, choose_shared(facts), DataConfig(), plan)}
    models = {name: one.experiment.model for name, one in raced.items()}
    filtered = {n for n, m in models.items() if isinstance(m, NextItemConfig) and m.filter}
    assert filtered == ({"dot-product", "target-attention"} if sparse else set())
    assert all(("filter" in raced[name].description) == (name in filtered) for name in raced)
    excluded = {name: one.experiment.training.exclude_seen for name, one in raced.items()}
    assert excluded.pop("dot-product") is (False if sparse else None)
    assert {*excluded.values()} == {None}


@pytest.mark.parametrize("preset", ["fast", "balanced", "best"])
@pytest.mark.parametrize("has_times", [True, False])
def test_candidates_are_complete_experiments(
    tracking: TrackingConfig, preset: Preset, has_times: bool
) -> None:
    facts = replace(USUAL, has_times=has_times)
    candidates = propose(facts, choose_shared(facts), DataConfig(), Plan("x", preset, 3, tracking))
    assert len({one.name for one in candidates}) == len(candidates) >= 2
    assert {one.experiment.seed for one in candidates} == {3}


# --- The budget ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", ["", "soon", "0", "-5m", "3 days", "2d", "500ms", "1h30m", "10k", "nan", "inf"]
)
def test_a_time_limit_that_is_none_is_refused(limit: str) -> None:
    with pytest.raises(InputError, match="time limit"):
        parse_time_limit(limit)


def test_an_interrupted_run_has_less_time_left() -> None:
    assert Budget(100, before=60).left == pytest.approx(40, abs=1)


# --- Contenders ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_paused_training_is_the_same_as_one_that_is_not(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    whole, paused = contenders(dataset, tracking)[0], contenders(dataset, tracking)[0]
    whole._advance(after(4))  # type: ignore[arg-type]
    for validations in (1, 2, 3, 4):
        paused._advance(after(validations))  # type: ignore[arg-type]
    assert [p.ndcg for p in paused.points] == [p.ndcg for p in whole.points]
    assert whole.latest is not None
    assert paused.latest is not None
    for name, weight in whole.latest.checkpoint["current_model_state"].items():
        assert torch.equal(weight, paused.latest.checkpoint["current_model_state"][name]), name


@pytest.mark.slow
def test_the_best_state_stays_when_training_goes_on(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    one = contenders(dataset, tracking)[0]
    one._advance(after(1))  # type: ignore[arg-type]
    assert one.best is not None
    first = one.best.checkpoint["current_model_state"]
    kept = {name: weight.clone() for name, weight in first.items()}
    epochs = len(one.best.curve.epochs)
    one._advance(after(3))  # type: ignore[arg-type]
    for name, weight in first.items():
        assert torch.equal(weight, kept[name]), name
    assert epochs < one.epochs


@pytest.mark.slow
def test_what_is_validated_is_the_average_and_the_refit_goes_on_with_it(
    dataset: PreparedDataset, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = contenders(dataset, tracking)[0]
    one._advance(after(3))  # type: ignore[arg-type]
    best = one.best_state
    model, curve = one.best_model()
    assert curve.best == one.quality
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, curve.best_weights[name]), name
    weight, average = (
        best.checkpoint[name]["model.items.weight"]
        for name in ("current_model_state", "state_dict")
    )
    assert not torch.equal(curve.best_weights["items.weight"], weight)
    given: list[Any] = []

    def note(*args: object) -> tuple[Model, Curve]:
        given.append(args)
        return model, curve

    monkeypatch.setattr("recsys.automatic.contender.train", note)
    one.refit(lambda _: True)
    ((experiment, *_, state, _),) = given
    assert torch.equal(state.checkpoint["current_model_state"]["model.items.weight"], weight)
    assert torch.equal(average, curve.best_weights["items.weight"])
    assert experiment.training.average_weights
    assert experiment.training.decay_fraction == 0


@pytest.mark.slow
@pytest.mark.parametrize("time_is_left", [False, True])
def test_a_refit_has_as_many_epochs_as_the_time_allows(
    dataset: PreparedDataset, tracking: TrackingConfig, time_is_left: bool
) -> None:
    one = contenders(dataset, tracking)[0]
    one._advance(after(3))  # type: ignore[arg-type]
    epochs: list[None] = []
    one.goes_on = lambda: epochs.append(None)
    left = one.seconds_of_refit(1) if not time_is_left else math.inf
    model = finish(one, lambda: left - len(epochs) * left).fitted.model
    assert len(epochs) == (one.best_epoch if time_is_left else 1)
    before = one.best_model()[0].state_dict()
    assert any(not torch.equal(before[name], w) for name, w in model.state_dict().items())


@pytest.mark.slow
def test_a_training_without_gains_is_exhausted(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    one = contenders(dataset, tracking)[0]
    one.advance(lambda _: False)
    assert one.exhausted
    assert one.quality > 0.5  # the chain is learned


@pytest.mark.parametrize(
    ("validations", "best_baseline", "exhausted"),
    [(5, 0.0, True), (5, 0.3, True), (5, 0.5, False), (17, 0.5, True), (4, 0.0, False)],
)
def test_a_model_far_behind_the_baselines_has_more_patience(
    dataset: PreparedDataset,
    tracking: TrackingConfig,
    validations: int,
    best_baseline: float,
    exhausted: bool,
) -> None:
    one = contenders(dataset, tracking)[0]
    qualities = [0.2, *[0.1] * (validations - 1)]  # the first was the best
    one.points = [RacePoint(n, n, quality) for n, quality in enumerate(qualities, 1)]
    one.best_baseline = best_baseline
    assert one.exhausted == exhausted


def test_slow_validations_become_rare(dataset: PreparedDataset, tracking: TrackingConfig) -> None:
    one = contenders(dataset, tracking)[0]
    one._advance(after(1))  # type: ignore[arg-type]
    assert one.latest is not None
    last = one.latest.curve.epochs[-1]
    training = sum(epoch["train/seconds"] for epoch in one.latest.curve.epochs)
    last["epoch/valid_seconds"] = 5 * training
    one.rarely = one._affordable_validations()
    assert one.rarely == 20  # 20 trainings beside a validation of 5: a fifth
    assert one.experiment.training.validate_every == 20 * last_every(one)


def last_every(one: Contender) -> int:
    return one.candidate.experiment.training.validate_every


# --- The race ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_half_of_the_field_drops_out_each_round(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    field = contenders(dataset, tracking, "balanced")
    said: list[str] = []
    ranked = race(field, 0.0, said.append)
    assert len(ranked) == len(field) == 4
    assert all(one.points for one in ranked)  # each had a chance
    assert sorted(one.dropped_in or 9 for one in ranked) == [1, 1, 2, 9]
    assert [one.dropped_in for one in ranked] == [None, 2, 1, 1]
    assert said[0].startswith("round 1 of 2")


@pytest.mark.slow
def test_finishing_trains_on_everything_but_the_test_targets(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    one = contenders(dataset, tracking)[0]
    one._advance(after(2))  # type: ignore[arg-type]
    finished = finish(one, lambda: math.inf)
    assert finished.fitted.trained_on == ("train", "valid")
    assert finished.fitted.curve.best == one.quality
    training = finished.experiment.training
    assert (training.max_epochs, training.decay_fraction) == (one.best_epoch, 0)
    assert training.average_weights
    assert training.refit


def test_without_time_the_best_epoch_is_kept_as_it_is(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    one = contenders(dataset, tracking)[0]
    one._advance(after(2))  # type: ignore[arg-type]
    finished = finish(one, lambda: -math.inf)
    assert finished.fitted.trained_on == ("train",)
    assert finished.fitted.curve.best == one.quality
    training = finished.experiment.training
    assert (training.max_epochs, training.decay_fraction) == (one.best_epoch, 0)
    assert training.average_weights


def raced(contenders: list[Contender]) -> list[Contender]:
    return [one for one in contenders if one.dropped_in is None]


def test_a_short_race_is_run_by_those_that_it_can_compare(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    field = contenders(dataset, tracking, "balanced")
    for one in field:
        one.expected_seconds = one.candidate.cost
    cost = sum(one.candidate.cost for one in field)
    choose_field(field, FEWEST * 2 * cost)  # in two rounds
    assert raced(field) == field
    fresh = contenders(dataset, tracking, "balanced")
    for one in fresh:
        one.expected_seconds = one.candidate.cost
    choose_field(fresh, FEWEST * 2 * min(one.candidate.cost for one in fresh))
    (only,) = raced(fresh)
    assert only.candidate.cost == min(one.candidate.cost for one in fresh)
    assert all(one.dropped_in == 0 for one in fresh if one is not only)


def test_a_kind_that_costs_more_than_estimated_is_not_dropped_by_chance() -> None:
    """After its share of the time it trains on until it has three validations, at most as long."""
    one = SimpleNamespace(points=[1, 2], seconds_per_epoch=1.0)
    now = time.monotonic()
    assert not _is_over(now - 5, now + 10, one)  # type: ignore[arg-type]
    assert _is_over(now - 5, now - 1, one)  # type: ignore[arg-type]
    one.points.append(3)
    assert _is_over(now - 5, now + 10, one)  # type: ignore[arg-type]


_STATE = SimpleNamespace(curve=SimpleNamespace(epochs=[0, 0], precision="float32"))


def test_the_slow_first_epoch_is_no_measure_of_the_others(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    one = contenders(dataset, tracking)[0]
    one.advance(lambda _: True)
    assert 0 < one.seconds_of_first < one.seconds
    others = (one.seconds - one.seconds_of_first) / (one.epochs - 1)
    one.seconds += 100
    one.seconds_of_first += 100
    assert one.seconds_per_epoch == pytest.approx(others)


def test_a_refit_is_planned_without_validations(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    one = contenders(dataset, tracking)[0]
    one.points = [RacePoint(n, n, 0.1) for n in range(1, 12)]
    one.seconds, one.seconds_of_first, one.seconds_validating = 110.0, 10.0, 33.0
    margin = one.seconds_of(1) / 10  # 10 s an epoch, of which its validation takes 3
    assert one.seconds_of_refit(2) == pytest.approx(2 * 7 * one.cost_of_refit * margin)
    assert one.seconds_to_end(11) == pytest.approx(one.seconds_of_refit(6))
    assert one.seconds_to_end(13, 4) == one.seconds_of(2) + one.seconds_of_refit(4)


def test_the_epochs_to_a_share_of_the_best(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    one = contenders(dataset, tracking)[0]
    one.points = [RacePoint(n, 2 * n, ndcg) for n, ndcg in enumerate([0.1, 0.2, 0.38, 0.3, 0.4], 1)]
    assert one.epochs_to(0.95) == 6
    assert one.epochs_to(1) == 10


class Scripted:
    """Validations of a contender that are not measured: it gains until they end."""

    def __init__(self, one: Contender, *qualities: float) -> None:
        self.one, self.coming = one, list(qualities)
        one.latest = one.best = _STATE  # type: ignore[assignment]
        one.seconds = 1e-3

    def advance(self, enough: Callable[[Contender], bool]) -> None:
        while self.coming and not self.one.exhausted and not enough(self.one):
            number = len(self.one.points) + 1
            self.one.points.append(RacePoint(number, number, self.coming.pop(0)))


@pytest.fixture
def after_a_race(
    dataset: PreparedDataset, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> list[Contender]:
    """A winner that gains nothing more, and one that was dropped after two epochs."""
    winner, other = contenders(dataset, tracking)
    scripts = {winner.candidate.name: Scripted(winner, 0.1, 0.2, 0.3, *[0.3] * 20)}
    scripts[other.candidate.name] = Scripted(other, 0.2, 0.25, 0.35, 0.4, *[0.4] * 20)
    monkeypatch.setattr(Contender, "advance", lambda one, e: scripts[one.candidate.name].advance(e))
    winner.advance(after(3))  # type: ignore[arg-type]
    other.advance(after(2))  # type: ignore[arg-type]
    other.dropped_in = 1
    return [winner, other]


def test_ctrl_c_between_two_epochs_ends_no_run(
    after_a_race: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object, __: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Contender, "advance", interrupt)
    hold(after_a_race[0], lambda _: False)
    assert after_a_race[0].interrupted


def test_who_diverges_is_not_said_to_rise(
    after_a_race: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(_: object, __: object) -> None:
        raise InputError("the loss is not finite")

    monkeypatch.setattr(Contender, "advance", diverge)
    best = after_a_race[0]
    hold(best, lambda _: False)
    assert best.failure
    curve = SimpleNamespace(epochs=[0], precision="float32")
    best.best = SimpleNamespace(curve=curve)  # type: ignore[assignment]
    monkeypatch.setattr(Contender, "best_model", lambda _: (None, None))
    finish(best, lambda: -math.inf)
    assert not best.ended_rising


def test_outcomes_on_the_page(after_a_race: list[Contender]) -> None:
    winner, other = after_a_race

    def outcomes(answer: Contender | None, averaging: Averaging | None = None) -> list[str]:
        run = SimpleNamespace(contenders=after_a_race, winner=answer, averaging=averaging)
        return [_outcome(one, run) for one in after_a_race]  # type: ignore[arg-type]

    assert outcomes(winner) == ["won", "dropped in round 1"]
    names = winner.candidate.name, other.candidate.name
    assert outcomes(winner, Averaging("", names, chosen=True)) == [
        f"won, averaged with {names[1]}",
        f"dropped in round 1, averaged with {names[0]}",
    ]
    assert "no better averaged with" in outcomes(winner, Averaging("", names))[1]
    of_a_baseline = outcomes(None, Averaging("", names, chosen=True))
    assert of_a_baseline[1] == "dropped in round 1"
    other.dropped_in = 0
    assert outcomes(winner)[1] == "not raced: the time was too short to compare it"
    winner.interrupted = True  # late, in the refit
    assert outcomes(winner)[1] == "not raced: the time was too short to compare it"
    winner.interrupted, other.dropped_in = False, 1
    after_a_race.reverse()
    assert outcomes(other) == ["won", "won the race"]
    assert outcomes(None)[0] == "the best model, but a baseline is better"
    other.interrupted = True
    assert outcomes(other)[1] == "stopped by Ctrl-C"


def test_ctrl_c_ends_the_race_with_the_best_so_far(
    dataset: PreparedDataset, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = contenders(dataset, tracking, "balanced")
    field[0]._advance(after(1))  # type: ignore[arg-type]

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(field[1], "advance", interrupt)
    ranked = race(field, 5.0, lambda _: None)
    assert ranked[0] is field[0]
    assert ranked[0].interrupted
    assert not any(one.points for one in ranked[1:])
    finished = finish(ranked[0], lambda: 100.0)
    assert finished.fitted.interrupted
    assert finished.fitted.trained_on == ("train",)


@pytest.mark.slow
def test_ctrl_c_in_the_refit_keeps_what_was_validated(
    dataset: PreparedDataset, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = contenders(dataset, tracking)[0]
    one._advance(after(2))  # type: ignore[arg-type]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Contender, "refit", interrupt)
    finished = finish(one, lambda: math.inf)
    assert one.interrupted
    assert finished.fitted.trained_on == ("train",)
    assert finished.fitted.curve.best > 0


def test_a_contender_that_diverges_drops_out(
    dataset: PreparedDataset, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = contenders(dataset, tracking)

    def diverge(_: object) -> None:
        raise InputError("the loss is not finite")

    monkeypatch.setattr(field[0], "advance", diverge)
    ranked = race(field, 0.0, lambda _: None)
    assert ranked[0] is field[1]
    assert field[0].dropped_in == 1


# --- The targets ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_weights_of_counts_are_chosen_on_more_targets_than_are_reported(
    dataset: PreparedDataset, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = contenders(dataset, tracking)[0]
    one._advance(after(1))  # type: ignore[arg-type]
    finished = finish(one, lambda: -math.inf)
    valid, chosen_on = dataset.holdout("valid"), []

    def note(model: Scorer, histories: Histories, holdout: Holdout, *rest: Any) -> Any:
        chosen_on.append(len(holdout.histories))
        return choose_count_ensemble(model, histories, holdout, *rest)

    monkeypatch.setattr("recsys.experiments.count_weights.choose_count_ensemble", note)
    held_out = HeldOutParts(valid.sample(20, 0), dataset.holdout("test"), valid.sample(50, 0))
    config = CountEnsembleConfig()
    weighed = fit_count_ensemble(config, finished.experiment, dataset, held_out, finished.fitted)
    assert chosen_on == [50]
    assert len(weighed.ranks.frame) == 20
    expected = evaluate(weighed.validated, held_out.valid, "valid", "filter")
    assert weighed.ranks.frame.equals(expected.frame)


def test_targets_are_sampled_where_time_is_short(dataset: PreparedDataset) -> None:
    evaluation = EvaluationConfig()
    everything = Targets.choose(dataset, evaluation, 1e6, seed=0)
    full = dataset.holdout("test")
    assert len(everything.held_out.test.targets) == len(full.targets)
    some = Targets.choose(dataset, evaluation, 1e6, seed=0, sizes=[50, 60, 70])
    again = Targets.choose(dataset, evaluation, 1.0, seed=0, sizes=[50, 60, 70])
    assert len(some.held_out.valid.histories) == 50
    assert len(some.held_out.test.histories) == 60
    assert some.held_out.weighing is not None
    assert len(some.held_out.weighing.histories) == 70
    assert some.held_out.test.targets.tolist() == again.held_out.test.targets.tolist()
    known = dict(zip(full.users.tolist(), full.targets.tolist(), strict=True))
    sampled = some.held_out.test
    assert all(known[u] == t for u, t in zip(sampled.users, sampled.targets, strict=True))


# --- The journal ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_race_resumes_where_it_was(
    dataset: PreparedDataset, tracking: TrackingConfig, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "race", {"dataset": dataset.fingerprint})
    field = contenders(dataset, tracking)
    protocol, valid = field[0].candidate.experiment, dataset.holdout("valid")
    journal.baselines = list(tune_baselines(protocol, dataset, valid, Budget(1e6), print))
    journal.restore(field)
    field[0].saved = lambda one: journal.save(one, 12.5)
    field[0]._advance(after(1))  # type: ignore[arg-type]
    again = Journal(tmp_path / "race", {"dataset": dataset.fingerprint})
    assert again.seconds_spent() == 12.5
    assert again.baselines == journal.baselines
    restored = contenders(dataset, tracking)
    again.restore(restored)
    assert restored[0].latest is not None
    assert 0 < restored[0].seconds_of_first < restored[0].seconds
    assert restored[1].latest is None
    field[0]._advance(after(len(field[0].points) + 1))  # type: ignore[arg-type]
    restored[0]._advance(after(len(field[0].points)))  # type: ignore[arg-type]
    assert restored[0].quality == field[0].quality
    journal.remove()
    assert not (tmp_path / "race").exists()


def test_a_journal_of_other_settings_is_not_resumed(
    dataset: PreparedDataset, tracking: TrackingConfig, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "race", {"seed": 1})
    field = contenders(dataset, tracking)
    journal.restore(field)
    field[0].saved = lambda one: journal.save(one, 12.5)
    field[0]._advance(after(1))  # type: ignore[arg-type]
    assert Journal(tmp_path / "race", {"seed": 2}).seconds_spent() == 0
    assert not (tmp_path / "race").exists()


# --- The whole run -------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_model_wins_where_two_items_tell(
    tracking: TrackingConfig, tmp_path: Path, here: Path
) -> None:
    """Each user goes on by a step of their own, which two items tell and one does not."""
    rng = np.random.default_rng(0)
    step = rng.choice([1, 3, 7], size=400)
    items = (rng.integers(ITEMS, size=400)[:, None] + step[:, None] * np.arange(10)) % ITEMS
    log = pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(400), 10),
            "item_id": items.ravel(),
            "timestamp": np.cumsum(rng.integers(1, 90_000, size=items.shape), axis=1).ravel(),
        }
    )
    dataset = prepare(log, out=tmp_path / "steps")
    run = run_automatically(dataset, Plan("steps", "fast", 0, tracking), Budget(20))
    assert run.winner is run.contenders[0]
    assert run.run.test["ndcg_at_10"].mean > 0.9
    model = Recommender.load(here / "runs" / "steps" / "bundle", dataset)
    assert len(model.recommend(users=[0, 1], k=3)) == 6
    settings = load_experiment(here / "runs" / "steps" / "experiment.yaml")
    assert settings.evaluation.seen == run.choices[0].value


@pytest.mark.slow
def test_the_settings_run_by_themselves(
    dataset: PreparedDataset, tracking: TrackingConfig, here: Path
) -> None:
    run_automatically(dataset, Plan("chains", "fast", 0, tracking), Budget(5))
    settings = load_experiment(here / "runs" / "chains" / "experiment.yaml")
    again = fit(settings, dataset, here / "again")
    assert again.test["ndcg_at_10"].mean > 0.3


@pytest.mark.slow
def test_a_baseline_that_no_model_beats_is_the_answer(
    tracking: TrackingConfig, tmp_path: Path, here: Path
) -> None:
    """Random histories of a few users: there is nothing to learn but what is popular."""
    rng = np.random.default_rng(0)
    items = np.minimum(rng.geometric(0.15, size=(60, 6)), ITEMS)
    log = pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(60), 6),
            "item_id": items.ravel(),
            "timestamp": np.tile(np.arange(6), 60) * 1000 + rng.integers(900, size=360),
        }
    )
    dataset = prepare(log, out=tmp_path / "random")
    run = run_automatically(dataset, Plan("random", "fast", 0, tracking), Budget(3))
    assert ", a baseline: " in run.answer
    assert run.winner is None
    model = Recommender.load(here / "runs" / "random" / "bundle", dataset)
    recommended = model.recommend(users=[0], k=3)
    assert recommended["source"].unique().to_list() == ["model"]
    assert len(model.explain([1, 2], 3)) == 2
    settings = load_experiment(here / "runs" / "random" / "experiment.yaml")
    assert settings.baseline == run.baselines[0].name
    again = fit(settings, dataset, here / "again")
    assert again.test["ndcg_at_10"] == run.run.test["ndcg_at_10"]


def test_ctrl_c_before_any_model_is_validated_keeps_the_best_baseline(
    dataset: PreparedDataset,
    tracking: TrackingConfig,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("recsys.automatic.trials.choose_field", interrupt)
    run = run_automatically(dataset, Plan("stopped", "fast", 0, tracking), Budget(20))
    assert "and Ctrl-C stopped the run before a model was validated." in run.answer
    assert load_experiment(here / "runs" / "stopped" / "experiment.yaml").baseline
    page = write_page(run, dataset, here / "runs" / "stopped", "", Budget(20))
    assert "still rising" not in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_more_time_is_advised_where_time_ended_the_training(
    dataset: PreparedDataset, tracking: TrackingConfig, here: Path
) -> None:
    run = run_automatically(dataset, Plan("once", "fast", 0, tracking), Budget(1))
    winner = run.contenders[0]
    advice = next_steps(run, dataset)[0]
    assert ("had been validated once" in advice) == (len(winner.points) == 1)
    winner.ended_rising = False
    assert not any("--time-limit" in step for step in next_steps(run, dataset))


def test_baselines_are_tuned_within_their_time(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    protocol = contenders(dataset, tracking)[0].candidate.experiment
    valid = dataset.holdout("valid")
    everything = list(tune_baselines(protocol, dataset, valid, Budget(1e6), print))
    assert {one.name for one in everything} == set(baselines_of(protocol, dataset))
    assert not list(tune_baselines(protocol, dataset, valid, Budget(1e-9), print))
