"""The mean of the winner of an automatic run with another kind of model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recsys.automatic.averaging import (
    _best_of,
    averaged_experiment,
    end_training,
    finish_both,
    pays,
    seconds_for_mean,
    train_second,
)
from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Plan, Preset, choose_shared, propose
from recsys.automatic.contender import Contender
from recsys.automatic.facts import LogFacts
from recsys.automatic.page import write_page
from recsys.automatic.race import partners, race
from recsys.automatic.run import run_automatically
from recsys.config import (
    AveragedConfig,
    TrackingConfig,
    dump_experiment,
    load_experiment,
)
from recsys.data.prepared import PreparedDataset, prepare
from recsys.experiments.fit import fit
from recsys.experiments.trainings import member_experiment
from recsys.model.averaged import AveragedModel
from recsys.reports.run_page import RacePoint
from recsys.serving.bundle import ModelBundle
from tests.unit.conftest import chains

LIMIT = 240.0  # no time ends a training before it gains nothing more
_STATE: Any = SimpleNamespace(curve=SimpleNamespace(epochs=[0, 0], precision="float32"))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(150, 12), out=tmp_path_factory.mktemp("data") / "steps")


@pytest.fixture
def tracking(tmp_path: Path) -> TrackingConfig:
    return TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")


def contenders(
    dataset: PreparedDataset, tracking: TrackingConfig, preset: Preset
) -> list[Contender]:
    facts = LogFacts.of(dataset)
    candidates = propose(
        facts, choose_shared(facts), dataset.config, Plan("x", preset, 0, tracking)
    )
    valid = dataset.holdout("valid")
    return [Contender.ready(each, dataset, valid, clock=lambda: 0.0) for each in candidates]


def validated_each_epoch(field: list[Contender]) -> list[Contender]:
    """As the scripted ones below are."""
    for one in field:
        training = one.experiment.training.model_copy(update={"validate_every": 1})
        experiment = one.candidate.experiment.model_copy(update={"training": training})
        one.candidate = replace(one.candidate, experiment=experiment)
    return field


def kinds(field: list[Contender]) -> list[str]:
    return [one.candidate.experiment.model.family for one in field]


# --- Who is averaged -----------------------------------------------------------------------------


def test_presets_with_time_average(tracking: TrackingConfig) -> None:
    assert [Plan("x", preset).averages for preset in ("fast", "balanced", "best")] == [
        False,
        True,
        True,
    ]


def test_partners_are_of_another_kind(dataset: PreparedDataset, tracking: TrackingConfig) -> None:
    field = contenders(dataset, tracking, "best")
    for place, one in enumerate(field):
        one.points = [RacePoint(1, 1, 1 - place / 10)]
        one.latest = one.best = _STATE
    assert len(set(kinds(field))) == 3
    first = field[0]
    of_others = [one for one in field if kinds([one]) != kinds([first])]
    assert partners(field) == of_others
    of_others[0].latest = None  # its memory is free
    assert partners(field) == of_others[1:]
    assert not partners([first])


def test_the_most_promising_partner_is_the_best_after_as_many_epochs(
    dataset: PreparedDataset, tracking: TrackingConfig
) -> None:
    first, *field = contenders(dataset, tracking, "best")
    others = [one for one in field if kinds([one]) != kinds([first])]
    first.points = [RacePoint(1, 9, 0.9)]
    for one, later in zip(others, (0.5, 0.4, *[0.3] * len(others)), strict=False):
        one.points = [RacePoint(n, n, 0.1) for n in (1, 2, 3)] + [RacePoint(4, 6, later)]
        one.latest = _STATE
    slow, *_, hopeless = others[1:]
    slow.points = [RacePoint(n, n, n / 10) for n in (1, 2, 3)]
    hopeless.points = [RacePoint(1, 1, 0.2)]  # too few to compare
    assert partners([first, *others])[0] is slow
    assert hopeless not in partners([first, *others])
    others[1].is_partner = True  # a run that was killed resumes with it
    assert partners([first, *others]) == others[1:2]


@pytest.mark.slow
@pytest.mark.parametrize("averages", [True, False])
def test_those_of_another_kind_keep_their_states(
    dataset: PreparedDataset,
    tracking: TrackingConfig,
    averages: bool,
) -> None:
    field = contenders(dataset, tracking, "balanced")
    ranked = race(field, 0.0, lambda _: None, averages=averages)
    known = [one for one in ranked[1:] if one.best is not None]
    assert bool(known) == averages
    assert bool(partners(ranked)) == averages


# --- Its training --------------------------------------------------------------------------------


class Scripted:
    """Validations of a contender that are not measured: it gains until they end."""

    def __init__(self, one: Contender, *qualities: float) -> None:
        self.one, self.coming = one, list(qualities)
        one.latest = one.best = _STATE
        one.seconds = 1e-3

    def advance(self, enough: Callable[[Contender], bool]) -> None:
        while self.coming and not self.one.exhausted and not enough(self.one):
            number = len(self.one.points) + 1
            self.one.points.append(RacePoint(number, number, self.coming.pop(0)))
            self.one.seconds = float(number)  # a second an epoch
            self.one.seconds_of_first = 1.0


@pytest.fixture
def pair(
    dataset: PreparedDataset, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> list[Contender]:
    """A winner that has its best after ten epochs, and another one that was dropped after two."""
    winner, other = validated_each_epoch(contenders(dataset, tracking, "fast"))
    script = Scripted(other, 0.1, 0.2, *[0.2 + n / 1_000 for n in range(1, 50)])
    monkeypatch.setattr(Contender, "advance", lambda _, enough: script.advance(enough))
    Scripted(winner)
    winner.points = [RacePoint(n, n, min(n, 10) / 20) for n in range(1, 17)]
    winner.seconds = 16.0
    other.advance(lambda one: len(one.points) >= 2)
    other.dropped_in = 1
    return [winner, other]


def test_the_second_model_trains_on_while_it_gains(pair: list[Contender]) -> None:
    said: list[str] = []
    assert train_second(pair[0], pair[1], lambda: math.inf, said.append)
    assert pair[1].epochs == 51
    assert "for the mean with" in said[0]


def test_time_is_kept_for_the_ends_of_both(pair: list[Contender]) -> None:
    winner, other = pair
    start = other.seconds
    limit = seconds_for_mean(winner, other) + 60
    assert train_second(winner, other, lambda: limit - (other.seconds - start), lambda _: None)
    assert 5 < other.epochs < 51
    left = limit - (other.seconds - start)
    ends = winner.seconds_to_end(winner.best_epoch) + other.seconds_to_end(other.epochs)
    assert left >= ends


def test_where_time_is_short_the_second_has_half_of_the_winners_epochs_and_a_short_refit(
    pair: list[Contender],
) -> None:
    winner, other = pair
    start, needed = other.seconds, seconds_for_mean(winner, other)
    least = 5  # half of the ten epochs that 95% of the best took
    ends = winner.seconds_to_end(winner.best_epoch) + other.seconds_to_end(least, 1)
    assert needed == pytest.approx(ends)
    assert train_second(winner, other, lambda: needed - (other.seconds - start), lambda _: None)
    assert other.epochs == least


def test_the_second_best_partner_is_taken_if_there_is_no_time_for_the_best(
    dataset: PreparedDataset, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *field = validated_each_epoch(contenders(dataset, tracking, "best"))
    slow, quick, *_ = others = [one for one in field if kinds([one]) != kinds([first])]
    for one in (first, *others):
        one.points = [RacePoint(n, n, n / 100) for n in range(1, 9)]
        one.latest, one.best, one.seconds = _STATE, _STATE, 8.0
    slow.points = [RacePoint(n, n, n / 50) for n in (1, 2, 3)]
    slow.seconds = 300.0
    first.points.append(RacePoint(9, 9, 0.5))
    quick.points.append(RacePoint(9, 9, 0.1))
    tried: list[Contender] = []

    def train(_: Contender, second: Contender, *__: object) -> bool:
        tried.append(second)
        return False

    monkeypatch.setattr("recsys.automatic.averaging.hold", lambda *_: None)
    monkeypatch.setattr("recsys.automatic.averaging.train_second", train)
    monkeypatch.setattr("recsys.automatic.averaging.finish", lambda *_: None)
    for seconds, expected in (
        (seconds_for_mean(first, slow), [slow]),
        (seconds_for_mean(first, slow) - 0.1, [quick]),
    ):
        for one in others:
            one.latest = one.best = _STATE
        tried.clear()
        end_training(
            [first, *others], lambda *_, left=seconds: left, first.validation, print, averages=True
        )
        assert tried == expected
        assert [one for one in others if one.latest is not None] == expected
    for one in others:
        one.latest = one.best = _STATE
    ended = end_training([first, *others], lambda *_: 0.0, first.validation, print, averages=True)
    assert ended.averaging is not None
    assert f"and {slow.candidate.name}." in ended.averaging.sentence
    assert not any(one.latest for one in others)


@pytest.mark.parametrize("is_short", [False, True])
def test_the_refit_of_the_second_is_short_only_where_time_is(
    pair: list[Contender], monkeypatch: pytest.MonkeyPatch, is_short: bool
) -> None:
    winner, other = pair
    curve: Any = SimpleNamespace(epochs=[0] * 10, precision="float32")
    other.best = SimpleNamespace(curve=curve)  # type: ignore[assignment]
    given: list[float] = []
    monkeypatch.setattr("recsys.automatic.averaging.finish", lambda _, left: given.append(left()))
    monkeypatch.setattr("recsys.automatic.averaging._is_refitted", lambda _: False)
    whole = other.seconds_to_end(other.best_epoch)
    left = winner.seconds_to_end(winner.best_epoch) + whole - is_short * 0.1
    finish_both((winner, other), lambda: left, winner.validation, lambda _: None)
    short = other.seconds_to_end(other.best_epoch, 2)
    # Without a refit in its time the winner gets that of the other one, too.
    assert given == [pytest.approx(left - (short if is_short else whole)), left]
    assert short < whole


def test_ctrl_c_in_its_training_keeps_the_winner(
    pair: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Contender, "advance", interrupt)
    finished: list[Any] = []
    monkeypatch.setattr("recsys.automatic.averaging.finish", lambda one, _: finished.append(one))
    valid, said = pair[0].validation, lambda _: None
    ended = end_training(pair, lambda *_: math.inf, valid, said, averages=True)
    assert finished == pair[:1]
    assert pair[0].interrupted
    assert ended.averaging is not None
    assert "Ctrl-C" in ended.averaging.sentence
    assert not ended.averaging.chosen


def test_ctrl_c_keeps_the_second_model_if_it_has_become_the_better_one(
    pair: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(one: Contender, *_: object) -> None:
        one.points.append(RacePoint(3, 3, 2 * pair[0].quality))
        raise KeyboardInterrupt

    monkeypatch.setattr(Contender, "advance", interrupt)
    finished: list[Any] = []
    monkeypatch.setattr("recsys.automatic.averaging.finish", lambda one, _: finished.append(one))
    valid, said = pair[0].validation, lambda _: None
    ended = end_training(pair, lambda *_: math.inf, valid, said, averages=True)
    assert finished == pair[1:]
    assert ended.contenders == pair[::-1]


def test_the_better_one_with_counts_is_compared_with_the_mean(
    pair: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one that was better at the constant rate."""
    ends: list[Any] = [
        SimpleNamespace(experiment=one.chosen_experiment, fitted=SimpleNamespace(quality=ndcg))
        for one, ndcg in zip(pair, (0.050, 0.055), strict=True)
    ]
    mean: Any = SimpleNamespace(quality=0.0551)
    where = "recsys.automatic.averaging"
    monkeypatch.setattr(f"{where}.mean_of", lambda *_: mean)
    monkeypatch.setattr(f"{where}.ndcg_with_counts", lambda *each: each[-1].quality)
    found, finished, averaging = _best_of(ends[0], ends[1], (pair[0], pair[1]), pair[0].validation)
    assert list(found) == pair[::-1]
    assert finished is ends[1]
    assert "0.0551, 0.0550 of" in averaging.sentence
    mean.quality = 0.056
    _, finished, averaging = _best_of(ends[0], ends[1], (pair[0], pair[1]), pair[0].validation)
    assert averaging.chosen
    assert finished.fitted is mean


def test_without_time_or_another_kind_the_winner_is_finished(
    pair: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Any] = []
    monkeypatch.setattr("recsys.automatic.averaging.finish", lambda one, _: finished.append(one))
    valid, said = pair[0].validation, lambda _: None
    ended = end_training(pair, lambda *_: 0.0, valid, said, averages=True)
    assert finished == pair[:1]
    assert ended.averaging is not None
    names = f"{pair[0].candidate.name} and {pair[1].candidate.name}"
    assert ended.averaging.sentence == f"No time was left for the mean of {names}."
    ended = end_training(pair[:1], lambda *_: math.inf, valid, said, averages=True)
    assert ended.averaging is not None
    assert "No other kind of model" in ended.averaging.sentence
    assert end_training(pair, lambda *_: 0.0, valid, said, averages=False).averaging is None


def test_a_gain_of_less_than_a_hundredth_does_not_pay() -> None:
    assert pays(0.0530, 0.0513)
    assert not pays(0.0515, 0.0513)


def test_the_settings_of_a_mean_have_the_trainings_of_both(
    pair: list[Contender], tmp_path: Path
) -> None:
    first, second = (one.chosen_experiment for one in pair)
    kept = first.training.model_copy(update={"exclude_seen": False})
    chosen = [first.model_copy(update={"training": kept}), second]
    mean = averaged_experiment(chosen)
    assert isinstance(mean.model, AveragedConfig)
    for place, (member, one) in enumerate(zip(mean.model.members, chosen, strict=True)):
        assert member.model == one.model
        trained = member_experiment(mean, member, place).training
        assert trained.exclude_seen == one.training.exclude_seen
        assert member.max_epochs == one.training.max_epochs
        assert member.decay_fraction == one.training.decay_fraction
        assert one.training.max_epochs <= mean.training.patience
    file = tmp_path / "mean.yaml"
    file.write_text(dump_experiment(mean))
    assert load_experiment(file) == mean


# --- The whole run -------------------------------------------------------------------------------


class Killed(BaseException):
    """A stand-in for kill -9."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Plan, "averages", True)
    monkeypatch.setattr("recsys.automatic.answer.Naming.__call__", lambda self, _: self.model)
    monkeypatch.setattr("recsys.automatic.contender.PATIENCE", 1)
    monkeypatch.setattr("recsys.automatic.tuned_baselines.SHARE", 0.0)
    monkeypatch.setattr("recsys.automatic.trials.choose_field", lambda *_: None)  # both are raced
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("better", [True, False])
def test_validation_decides_between_the_mean_and_the_winner(
    dataset: PreparedDataset,
    tracking: TrackingConfig,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    better: bool,
) -> None:
    compared: list[tuple[float, float]] = []

    def decide(mean: float, alone: float) -> bool:
        compared.append((mean, alone))
        return better

    monkeypatch.setattr("recsys.automatic.averaging.pays", decide)
    budget = Budget(LIMIT)
    run = run_automatically(dataset, Plan("mean", "fast", 0, tracking), budget)
    assert budget.spent < 1.05 * LIMIT
    ((mean, alone),) = compared
    assert run.averaging is not None
    assert run.averaging.chosen == better
    chosen = mean if better else alone
    assert run.run.valid["ndcg_at_10"].mean == pytest.approx(chosen)
    names = " and ".join(one.candidate.name for one in run.contenders)
    out = here / "runs" / "mean"
    bundle = ModelBundle.open(out)
    assert isinstance(bundle.model, AveragedModel) == better
    assert bundle.manifest.protocol.trained_on == ("train", "valid")
    assert f"he mean of {names}" in run.answer
    assert f"{mean:.4f}" in run.answer
    assert f"{alone:.4f}" in run.answer
    page = write_page(run, dataset, out, "", Budget(LIMIT)).read_text(encoding="utf-8")
    assert run.averaging.sentence in page
    assert ("averaged with" if better else "no better averaged with") in page
    settings = load_experiment(out / "experiment.yaml")
    assert isinstance(settings.model, AveragedConfig) == better
    if better:
        again = fit(settings, dataset, here / "again")
        assert again.test["ndcg_at_10"].mean > 0.3


@pytest.mark.slow
def test_a_run_that_is_killed_in_the_training_of_the_second_resumes(
    dataset: PreparedDataset,
    tracking: TrackingConfig,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill(*_: object) -> None:
        raise Killed

    plan = Plan("killed", "fast", 0, tracking)
    monkeypatch.setattr("recsys.automatic.averaging.pays", lambda *_: True)
    with monkeypatch.context() as patch:
        patch.setattr("recsys.automatic.averaging.hold", kill)
        with pytest.raises(Killed):
            run_automatically(dataset, plan, Budget(LIMIT))
    assert (here / "runs" / ".killed.race").exists()
    budget = Budget(LIMIT)
    run = run_automatically(dataset, plan, budget)
    assert budget.spent < 1.05 * LIMIT  # with what the killed one had spent
    assert run.averaging is not None
    assert run.averaging.chosen
