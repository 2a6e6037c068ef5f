"""The race of an automatic run: trainings that pause, resume and are refitted; drop-outs; means."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys.automatic import finish, race, run
from recsys.automatic.clock import Clock, Speed
from recsys.automatic.facts import LogFacts
from recsys.automatic.racer import Course, Racer
from recsys.automatic.rules import Plan, Preset, choose_shared, propose
from recsys.automatic.state import MeasuredBaseline, State
from recsys.config import AveragedConfig, dump_experiment, load_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baselines import baselines_of
from recsys.experiments.trainings import member_experiment
from recsys.inference.catalogue import Catalogue
from recsys.reports.run_page import RacePoint
from recsys.training import device
from recsys.training.checkpoints import TrainingState
from tests.conftest import chains

DIVERGED = InputError("training diverged in epoch 1: the loss is nan")
FAST = Speed(token=1e-6, ranking=1e-6, counting=1e-6)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(150, 12), out=tmp_path_factory.mktemp("data") / "chains")


@pytest.fixture
def start(
    dataset: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Racer]]:
    """Return racers of a new course; each moment is far away."""
    monkeypatch.chdir(tmp_path)

    def start(
        preset: Preset = "fast", speed: Speed = FAST, limit: float = 1e6, averages: bool = False
    ) -> list[Racer]:
        facts, plan = LogFacts.of(dataset), Plan("mine", preset)
        state, clock = State.open(plan.out, {"seed": 0}, fresh=False), Clock(limit)
        held_out = HeldOutParts.find(dataset, "unknown")
        catalogue = Catalogue(dataset.num_items)
        course = Course(plan, dataset, catalogue, held_out, speed, clock, state, averages=averages)
        kinds = propose(facts, choose_shared(facts), dataset.config, plan)
        racers = [Racer.ready(kind, course) for kind in kinds]
        state.racers = list(racers)
        return racers

    return start


def advance(racer: Racer, validations: int) -> None:
    """Train on until there are so many validations."""
    racer.train(-math.inf, fewest=validations)
    assert len(racer.points) == validations


def raises(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def weights(state: TrainingState | None, name: str = "current_model_state") -> dict[str, Any]:
    assert state is not None
    return {key: weight.clone() for key, weight in state.checkpoint[name].items()}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


# --- One training --------------------------------------------------------------------------------


def test_a_paused_or_killed_training_is_the_same_as_one_that_is_not(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, paused = start()[0], start()[0]
    advance(whole, 3)
    monkeypatch.setattr("recsys.automatic.state._SAVE_SECONDS", 0.0)
    advance(paused, 1)
    advance(paused, 2)
    killed = start()[0]
    assert [point.ndcg for point in killed.points] == [point.ndcg for point in paused.points]
    assert killed.seconds > killed.seconds_of_first > 0
    first, epoch = weights(paused.best), paused.best_epoch
    for racer in (paused, killed):
        advance(racer, 3)
        assert [point.ndcg for point in racer.points] == [point.ndcg for point in whole.points]
        assert same(weights(racer.latest), weights(whole.latest))
    assert same(first, weights(paused.best)) == (paused.best_epoch == epoch)
    killed.course.state.remove()
    assert not start()[0].points


def test_what_is_validated_is_the_average_and_the_refit_goes_on_with_it(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    racer = start()[0]
    advance(racer, 3)
    fitted, best = racer.validated(), racer.best_state
    assert fitted.curve.best == racer.quality
    assert fitted.trained_on == ("train",)
    are_best = same(dict(fitted.model.state_dict()), dict(fitted.curve.best_weights))
    assert are_best
    average = weights(best, "state_dict")["model.items.weight"]
    assert torch.equal(average, fitted.curve.best_weights["items.weight"])
    weight = weights(best)["model.items.weight"]
    assert not torch.equal(average, weight)
    starts: list[Any] = []

    def note(*words: Any) -> Any:
        starts.append(words[7])
        return fitted.model, fitted.curve

    with monkeypatch.context() as patch:
        patch.setattr("recsys.automatic.racer.train", note)
        racer.refit(math.inf)
    assert torch.equal(weights(starts[0])["model.items.weight"], weight)
    refitted = racer.refit(math.inf)
    assert refitted.trained_on == ("train", "valid")
    assert refitted.curve.best == racer.quality
    assert not same(dict(refitted.model.state_dict()), dict(fitted.model.state_dict()))
    training = racer.chosen_experiment.training
    assert (training.max_epochs, training.decay_fraction) == (racer.best_epoch, 0)
    assert training.average_weights
    assert training.refit


def test_its_precision_is_settled_once(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its race and its refit; the settings that repeat them name it."""
    shares = iter([0.4])
    monkeypatch.setattr(device, "bf16_share", lambda *_: next(shares))
    racer = start()[0]
    advance(racer, 1)
    advance(racer, 2)
    racer.refit(math.inf)
    assert racer.chosen_experiment.training.precision == "bf16"


@pytest.mark.parametrize("why", ["no time", "diverged", "stopped"])
def test_without_a_refit_the_model_is_the_one_that_was_validated(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    racer = start()[0]
    advance(racer, 1)
    racer.course.clock.stopped = why == "stopped"
    if why == "diverged":
        monkeypatch.setattr("recsys.automatic.racer.train", raises(DIVERGED))
    fitted = racer.refit(-math.inf if why == "no time" else math.inf)
    assert fitted.trained_on == ("train",)
    assert fitted.curve.best == racer.quality
    assert fitted.interrupted == (why == "stopped")


def test_a_refit_ends_when_its_time_is_over(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    racer = start()[0]
    advance(racer, 3)
    epochs: list[float] = []
    monkeypatch.setattr(racer.course.state, "note", epochs.append)
    racer.refit(racer.course.clock.spent + 0.9 * racer.seconds_per_refit_epoch)
    few, epochs[:] = len(epochs), []
    racer.refit(math.inf)
    assert few < len(epochs) == racer.best_epoch


@pytest.mark.parametrize(
    ("validations", "best_baseline", "exhausted"),
    [(5, 0.0, True), (5, 0.3, True), (5, 0.5, False), (17, 0.5, True), (4, 0.0, False)],
)
def test_a_training_without_gains_is_exhausted_later_if_it_is_far_behind_the_baselines(
    start: Callable[..., list[Racer]], validations: int, best_baseline: float, exhausted: bool
) -> None:
    racer = start()[0]
    qualities = [0.2, *[0.1] * (validations - 1)]  # the first was the best
    racer.points = [RacePoint(n, n, quality) for n, quality in enumerate(qualities, 1)]
    baseline = MeasuredBaseline("pctm", "", 0.0, best_baseline, 0.0, 0.0)
    racer.course.state.baselines = [baseline]
    assert racer.exhausted == exhausted


def test_epochs_are_as_long_as_the_time_and_validations_allow(
    start: Callable[..., list[Racer]],
) -> None:
    def lengths(**changes: Any) -> tuple[int, int]:
        training = start(**changes)[0].experiment.training
        return training.epochs_per_pass, training.validate_every

    usual = lengths()
    assert usual[1] > 1  # a pass has few steps
    assert lengths(speed=Speed(1e-3, 1e-6, 0.0), limit=30)[1] < usual[1]
    assert lengths(speed=Speed(1e-6, 1e-2, 0.0))[1] > usual[1]  # validations are slow


# --- The race ------------------------------------------------------------------------------------


def test_half_of_the_field_drops_out_each_rung(start: Callable[..., list[Racer]]) -> None:
    racers, said = start("balanced", limit=1e-3), list[str]()
    racers[0].course.announce = said.append
    for racer in racers:
        racer.rung = None
    racers[0].points.append(RacePoint(0, 0, 0.0))  # the field was chosen before
    ranked = race.race(racers[0].course, racers)
    assert [racer.rung for racer in ranked] == [None, 2, 1, 1]
    assert all(racer.points for racer in ranked)  # each had a chance
    assert said[0].startswith("rung 1 of 2")


def test_a_short_race_is_run_by_those_that_it_can_compare(
    start: Callable[..., list[Racer]],
) -> None:
    racers = start("balanced")
    needed = sum(racer.expected_interval for racer in racers)
    race.choose_field(racers, 3 * 2 * needed)  # three validations in two rungs
    assert not any(racer.rung == 0 for racer in racers)
    race.choose_field(racers, 3 * min(racer.expected_interval for racer in racers))
    (only,) = [racer for racer in racers if racer.rung is None]
    assert only.kind.cost == min(racer.kind.cost for racer in racers)


def test_a_kind_that_costs_more_than_estimated_is_not_dropped_by_chance(
    start: Callable[..., list[Racer]],
) -> None:
    racer = start()[0]
    racer.train(-math.inf, 3, latest=math.inf)
    assert len(racer.points) == 3
    racer.train(-math.inf, 4, latest=-math.inf)
    assert len(racer.points) == 3


def test_those_that_fail_drop_out_and_one_that_was_left_out_takes_their_place(
    start: Callable[..., list[Racer]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    racers = start("balanced")
    cheapest, other, last, left_out = sorted(racers, key=lambda racer: racer.kind.cost)
    cheapest.rung = left_out.rung = 0
    advance(last, 1)
    train = Racer._train

    def fail(racer: Racer, *words: Any) -> Any:
        if racer in {other, last}:
            raise DIVERGED
        return train(racer, *words)

    monkeypatch.setattr(Racer, "_train", fail)
    ranked = race.race(racers[0].course, racers)
    assert ranked[0] is last  # its best epoch before is used
    assert last.exhausted
    assert other.failure == str(DIVERGED)
    last.points.clear()
    racers[0].course.state.began.clear()
    racers[0].course.clock.limit = 1e-3
    ranked = race.race(racers[0].course, racers)
    assert ranked[0] is cheapest
    assert cheapest.points
    assert "drops out" in caplog.text


@pytest.mark.parametrize("step", ["race", "train_on", "finish"])
def test_ctrl_c_ends_the_training_with_the_best_so_far(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    racers = start("balanced", averages=True)
    course, called, finish_models = racers[0].course, list[str](), finish.finish

    def ctrl_c_at(name: str, result: Callable[[], Any]) -> Any:
        called.append(name)
        if name == step and called.count(name) == 1:
            raise KeyboardInterrupt
        return result()

    for name in ("race", "train_on"):
        monkeypatch.setattr(run, name, lambda *_, name=name: ctrl_c_at(name, lambda: racers))
    monkeypatch.setattr(
        run, "finish", lambda *words: ctrl_c_at("finish", lambda: finish_models(*words))
    )
    advance(racers[1], 1)
    finished = run.train_models(course, racers)
    assert finished is not None
    assert finished.fitted.interrupted
    assert finished.trained.trained_on == ("train",)
    assert not finished.trained.rising
    assert sorted((racer.outcome, racer.chosen) for racer in racers) == [
        *[("stopped by Ctrl-C", False)] * 3,
        ("won", True),
    ]


def test_ctrl_c_before_a_validation_leaves_the_baselines_if_there_are_any(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    racers = start("balanced")
    monkeypatch.setattr("recsys.automatic.racer.train", raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run.train_models(racers[0].course, racers)
    racers[0].course.state.baselines = [MeasuredBaseline("pctm", "", 0.0, 0.1, 0.0, 0.0)]
    assert run.train_models(racers[0].course, racers) is None


def test_baselines_are_tuned_within_their_time(start: Callable[..., list[Racer]]) -> None:
    course, protocol = (racer := start()[0]).course, racer.kind.experiment
    race.tune_baselines(course, protocol)
    state = course.state
    assert {b.name for b in state.baselines} == set(baselines_of(protocol, course.dataset))
    assert state.baselines[0].ndcg_at_10 == max(b.ndcg_at_10 for b in state.baselines)
    known = State.open(course.plan.out, {"seed": 0}, fresh=False)
    assert known.baselines == state.baselines
    assert [b.tuned for b in known.baselines] == [b.tuned for b in state.baselines]
    del state.baselines[3:]
    kept = list(state.baselines)
    race.tune_baselines(course, protocol)
    assert len(state.baselines) == len(known.baselines)  # the others were tuned again
    assert kept == [b for b in state.baselines if b in kept]
    short = start(limit=1e-9)[0].course
    short.state.baselines, short.state.began = [], {}
    race.tune_baselines(short, protocol)
    assert not short.state.baselines


# --- The mean ------------------------------------------------------------------------------------


def of(racer: Racer, *qualities: float) -> None:
    """Say that a racer had these validations, one an epoch; it cannot train on."""
    racer.points = [RacePoint(n, n, quality) for n, quality in enumerate(qualities, 1)]
    racer.seconds = float(len(qualities))
    racer.best = TrainingState({})


def test_partners_are_of_another_kind_the_best_after_as_many_epochs_first(
    start: Callable[..., list[Racer]],
) -> None:
    racers = {racer.name: racer for racer in start("best", averages=True)}
    hstu, dot = racers["hstu"], racers["dot-product"]
    summed, averaged = racers["target-attention"], racers["target-attention-average"]
    of(dot, 0.1, 0.2, 0.3)
    of(racers["gated-rotary"], 0.1, 0.2, 0.4)
    of(hstu, 0.1, 0.15, 0.2, 0.5)
    of(summed, 0.1, 0.2, 0.3)
    of(averaged, 0.4)  # too few validations to say
    assert race.partners([dot, *racers.values()])[:2] == [summed, hstu]
    assert hstu not in race.partners([hstu, dot])
    hstu.forget()
    assert hstu not in race.partners([dot, hstu, summed])


@pytest.mark.parametrize(
    ("left", "epochs", "expected"),
    [
        (100, 2, ["train the other", "both"]),  # the winner gains nothing more
        (3, 2, ["train the other", "both"]),
        (0.5, 2, ["one"]),  # no time for the epochs that it lacks
        (0.5, 4, ["both"]),  # it has enough
    ],
)
def test_another_kind_trains_if_time_is_left(
    start: Callable[..., list[Racer]],
    monkeypatch: pytest.MonkeyPatch,
    left: float,
    epochs: int,
    expected: list[str],
) -> None:
    racers = {racer.name: racer for racer in start("best", averages=True)}
    winner, other = racers["dot-product"], racers["hstu"]
    course, happened = winner.course, list[str]()
    of(winner, 0.1, 0.1, 0.1, 0.2, 0.3, 0.41, 0.42, 0.42, 0.42, 0.42)  # 95% after six epochs
    of(other, *[0.1 * n for n in range(1, epochs + 1)])
    monkeypatch.setattr(Course, "moment", lambda *_: course.clock.spent + left)
    monkeypatch.setattr(Racer, "train", lambda racer, _: None)
    course.announce = lambda what: (
        happened.append("train the other") if "the mean" in what else None
    )
    members = race.train_on(course, [winner, other])
    assert [*happened, "both" if other in members else "one"] == expected
    course.averages = False
    assert race.train_on(course, [winner, other]) == [winner]


def test_the_winner_trains_again_with_other_seeds_while_time_is_left(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    winner, *others = start(averages=True)
    for racer in others:
        racer.forget()
    course = winner.course
    course.state.add(winner, *others)
    advance(winner, 2)
    needed = winner.best_epoch * (winner.seconds_per_epoch + winner.seconds_per_refit_epoch)
    monkeypatch.setattr(Course, "moment", lambda *_: course.clock.spent + 0.5 * needed)
    monkeypatch.setattr(Racer, "exhausted", property(lambda racer: racer is winner))
    assert race.train_on(course, [winner, *others]) == [winner]
    monkeypatch.setattr(Course, "moment", lambda *_: course.clock.spent + 100 * needed)
    members = race.train_on(course, [winner, *others])
    assert [member.name for member in members[1:]] == [f"{winner.name}-{n}" for n in (2, 3)]
    seeds = [member.experiment.seed for member in members]
    assert seeds == [seeds[0], seeds[0] + 1, seeds[0] + 2]
    assert all(member.points and member.family == winner.family for member in members)
    assert [entry.name for entry in course.state.racers][-2:] == [m.name for m in members[1:]]
    finish.tell_outcomes(course, [winner.name, members[1].name])
    outcomes = {entry.name: entry.outcome for entry in course.state.racers}
    assert outcomes[members[1].name] == f"trained for a mean, averaged with {winner.name}"
    assert outcomes[members[2].name] == "trained for a mean"
    # An interrupted run finds what they had come to.
    course.state.write(course.clock.spent)
    course.state = State.open(course.plan.out, {"seed": 0}, fresh=False)
    resumed = Racer.ready(winner.kind.again(1), course)
    assert resumed.is_again
    assert resumed.points == members[1].points[: len(resumed.points)]


@pytest.mark.parametrize(
    ("mean", "chosen"), [(0.504, ["second"]), (0.52, ["second", "first"]), (0.40, ["second"])]
)
def test_a_mean_must_be_better_than_the_best_by_a_hundredth(
    start: Callable[..., list[Racer]],
    monkeypatch: pytest.MonkeyPatch,
    mean: float,
    chosen: list[str],
) -> None:
    first, second = start(averages=True)
    advance(first, 1)
    advance(second, 1)
    names = {first: "first", second: "second"}
    figures = iter([0.45, 0.50, mean])  # the winner of the race is worse with counts
    monkeypatch.setattr(finish, "_with_counts", lambda *_: (next(figures), []))
    members, choice = finish.choose_members(first.course, [first, second])
    assert [names[member] for member in members] == chosen
    assert choice is not None
    assert choice.value == ("averaged" if len(chosen) > 1 else "one model")
    assert f"{mean:.4f}, 0.5000 of {second.name} and 0.4500 of {first.name} alone" in choice.reason


@pytest.mark.parametrize("why", ["No other model", "No time was left"])
def test_a_mean_that_cannot_be_tried_says_why(start: Callable[..., list[Racer]], why: str) -> None:
    first, second = start(averages=True)
    of(first, 0.2)
    of(second, 0.3)
    racers = [first] if why == "No other model" else [first, second]
    if why == "No time was left":
        first.course.clock.limit = 0.0
    members, choice = finish.choose_members(first.course, racers)
    assert members == [racers[-1]]
    assert choice is not None
    assert choice.reason.startswith(why)


def test_the_settings_of_a_mean_have_the_trainings_of_all(
    start: Callable[..., list[Racer]], tmp_path: Path
) -> None:
    chosen = []
    for number, racer in enumerate(start(), 1):
        advance(racer, number)
        training = racer.chosen_experiment.training.model_copy(
            update={"exclude_seen": number == 1 or None}
        )
        chosen.append(racer.chosen_experiment.model_copy(update={"training": training}))
    mean = finish.averaged_experiment(chosen)
    assert isinstance(mean.model, AveragedConfig)
    for index, (member, alone) in enumerate(zip(mean.model.members, chosen, strict=True)):
        trained = member_experiment(mean, member, index).training
        assert member.model == alone.model
        assert trained.exclude_seen == alone.training.exclude_seen
        assert trained.max_epochs == alone.training.max_epochs <= mean.training.patience
        assert trained.decay_fraction == alone.training.decay_fraction
        assert trained.validate_every == alone.training.validate_every
    file = tmp_path / "mean.yaml"
    file.write_text(dump_experiment(mean))
    assert load_experiment(file) == mean
