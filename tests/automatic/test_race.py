"""The race of an automatic run: trainings that pause, resume and are refitted; drop-outs; means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from recsys.automatic import race, run
from recsys.automatic.clock import Clock, Speed
from recsys.automatic.racer import Context, MeasuredBaseline, Racer, State
from recsys.automatic.rules import LogFacts, Plan, Preset, choose_settings, propose
from recsys.config.files import dump_experiment, load_experiment
from recsys.config.model import AveragedConfig
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baselines import baselines_of
from recsys.experiments.trainings import members_of
from recsys.inference.catalogue import Catalogue
from recsys.reports.run_page import RacePoint
from recsys.training import device
from recsys.training.checkpoints import TrainingState
from tests.conftest import chains

DIVERGED = InputError("training diverged in epoch 1: the loss is nan")
STEPWISE = Speed(token=1e3, ranking=1e-6, counting=1e-6)
"""So slow that each step is validated."""
PCTM = MeasuredBaseline("pctm", "", 0.0, 0.1, 0.0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(150, 12), out=tmp_path_factory.mktemp("data") / "chains")


def new_racers(
    dataset: PreparedDataset,
    preset: Preset = "fast",
    speed: Speed = STEPWISE,
    limit: float = 1e6,
    averages: bool = False,
) -> list[Racer]:
    """Return racers of a new context in the current folder; each moment is far away."""
    facts, plan = LogFacts.of(dataset), Plan("mine", preset)
    state, clock = State.open(plan.out, {"seed": 0}, fresh=False), Clock(limit)
    held_out = HeldOutParts.find(dataset, "unknown")
    catalogue = Catalogue(dataset.num_items)
    context = Context(plan, dataset, catalogue, held_out, speed, clock, state, averages)
    kinds = propose(facts, choose_settings(facts), dataset.config, plan)
    return [Racer.ready(kind, context) for kind in kinds]


@pytest.fixture
def start(
    dataset: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Racer]]:
    monkeypatch.chdir(tmp_path)
    return partial(new_racers, dataset)


@pytest.fixture(scope="module")
def trained(dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Racer:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("race"))
        patch.setattr(device, "bf16_share", lambda *_: 0.4)
        racer = new_racers(dataset)[0]
        racer.context.state.folder = racer.context.state.folder.resolve()
        advance(racer, 3)
        best = (racer.context.state.folder / f"{racer.name}.best").read_bytes()
        advance(racer, 5)
        (racer.context.state.folder / f"{racer.name}.best").write_bytes(best)
        racer.points[3:] = [point._replace(ndcg=0.0) for point in racer.points[3:]]
    return racer


def advance(racer: Racer, validations: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Racer, "is_over", lambda racer, _: len(racer.points) >= validations)
        racer.train(0.0)
    assert len(racer.points) == validations


def weights(state: TrainingState | None, name: str = "current_model_state") -> dict[str, Any]:
    assert state is not None
    return {key: weight.clone() for key, weight in state.checkpoint[name].items()}


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


# --- One training --------------------------------------------------------------------------------


def test_a_paused_or_killed_training_is_the_same_as_one_that_is_not(
    start: Callable[..., list[Racer]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures(racer: Racer) -> list[float]:
        return [point.ndcg for point in racer.points]

    (folder := tmp_path / "whole").mkdir()
    monkeypatch.chdir(folder)
    whole = start()[0]
    advance(whole, 3)
    monkeypatch.chdir(tmp_path)
    paused = start()[0]
    advance(paused, 1)
    advance(paused, 2)
    killed = start()[0]  # in another process: what is not on disk is lost
    assert figures(killed) == figures(paused)
    assert killed.seconds > killed.validating > 0
    advance(killed, 3)
    assert figures(killed) == figures(whole)
    assert killed.best_epoch == whole.best_epoch
    for name in ("latest", "best"):
        last = weights(killed.read(name))
        monkeypatch.chdir(folder)
        assert same(last, weights(whole.read(name)))
        monkeypatch.chdir(tmp_path)
    killed.context.state.remove()
    assert not start()[0].points


def test_what_is_validated_is_the_average_and_the_refit_goes_on_with_it(
    trained: Racer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted, best = trained.validated(), trained.read("best")
    assert best is not None
    assert fitted.curve.best == trained.quality
    assert fitted.trained_on == ("train",)
    assert same(fitted.model.state_dict(), fitted.curve.best_weights)
    average = weights(best, "state_dict")["model.items.weight"]
    assert torch.equal(average, fitted.curve.best_weights["items.weight"])
    assert not torch.equal(average, weights(best)["model.items.weight"])
    starts: list[Any] = []
    train = Racer._train

    def note(racer: Racer, *words: Any) -> Any:
        starts.append(weights(words[3])["model.items.weight"])
        return train(racer, *words)

    monkeypatch.setattr(Racer, "_train", note)
    monkeypatch.setattr(device, "bf16_share", Mock(side_effect=AssertionError("timed again")))
    refitted = trained.refit(math.inf)
    assert torch.equal(starts[0], weights(best)["model.items.weight"])
    assert refitted.trained_on == ("train", "valid")
    assert refitted.curve.best == trained.quality
    assert not same(refitted.model.state_dict(), fitted.model.state_dict())
    training = trained.chosen_experiment(refitted).training
    assert (training.max_epochs, training.decay_fraction) == (trained.best_epoch, 0)
    assert training.average_weights
    assert training.refit
    assert training.precision == "bf16"


@pytest.mark.parametrize("reason", ["no time", "diverged", "stopped"])
def test_without_a_refit_the_model_is_the_one_that_was_validated(
    trained: Racer, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(trained.context.clock, "stopped", reason == "stopped")
    monkeypatch.setattr("recsys.automatic.racer.train", Mock(side_effect=DIVERGED))
    fitted = trained.refit(-math.inf if reason == "no time" else math.inf)
    assert fitted.trained_on == ("train",)
    assert fitted.curve.best == trained.quality
    assert fitted.interrupted == (reason == "stopped")


def test_a_refit_ends_when_its_time_is_over(
    trained: Racer, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs: list[int] = []
    train = Racer._train

    def count(racer: Racer, histories: Any, valid: Any, is_over: Any, *rest: Any) -> Any:
        def counted(epoch: int, metrics: dict[str, float]) -> bool:
            epochs.append(epoch)
            return bool(is_over(epoch, metrics))

        return train(racer, histories, valid, counted, *rest)

    monkeypatch.setattr(Racer, "_train", count)
    trained.refit(trained.context.clock.spent + trained.seconds_of_refit / trained.best_epoch)
    few, epochs[:] = len(epochs), []
    trained.refit(math.inf)
    assert few < len(epochs) == trained.best_epoch


@pytest.mark.parametrize(
    ("validations", "best_baseline", "exhausted"),
    [(5, 0.0, True), (5, 0.3, True), (5, 0.5, False), (17, 0.5, True), (4, 0.0, False)],
)
def test_a_training_without_gains_is_exhausted_later_if_it_is_far_behind_the_baselines(
    start: Callable[..., list[Racer]], validations: int, best_baseline: float, exhausted: bool
) -> None:
    racer = start()[0]
    of(racer, 0.2, *[0.1] * (validations - 1))  # the first was the best
    racer.context.state.baselines = [MeasuredBaseline("pctm", "", 0.0, best_baseline, 0.0)]
    assert racer.exhausted == exhausted


def test_epochs_are_as_long_as_the_time_and_validations_allow(
    start: Callable[..., list[Racer]],
) -> None:
    def lengths(*speed: float, limit: float = 1e6) -> tuple[int, int]:
        training = start(speed=Speed(*speed), limit=limit)[0].experiment.training
        return training.epochs_per_pass, training.validate_every

    parts, usual = lengths(1e-6, 1e-6, 0.0)
    assert parts == 1 < usual  # a pass of this log has few steps
    assert lengths(1e-6, 1e-2, 0.0)[1] > usual
    assert lengths(1e-3, 1e-6, 0.0, limit=30)[1] < usual
    assert lengths(1.0, 1e-6, 0.0, limit=30)[0] > 1


def test_a_moment_is_a_share_of_the_time_from_the_race_to_the_tests(
    start: Callable[..., list[Racer]],
) -> None:
    context = start(limit=1_000, speed=Speed(1e-6, 1e-9, 1e-9))[0].context
    context.state.race_began = 100.0
    context.state.baselines = [MeasuredBaseline("pctm", "", 0.0, 0.1, 4.0)]
    # Ten seconds for the page, nine for the baseline (two trials and the store), 2% of margin.
    assert context.moment(1.0) == pytest.approx(961, abs=0.1)
    assert context.moment(0.5) == pytest.approx(100 + 861 / 2, abs=0.1)
    context.state.baselines *= 100  # a twentieth of the limit at most
    assert context.moment(1.0) == pytest.approx(920, abs=0.1)


# --- The race ------------------------------------------------------------------------------------


def test_those_that_time_can_compare_race_and_half_of_them_drops_out_each_rung(
    start: Callable[..., list[Racer]],
) -> None:
    racers = start("balanced", limit=1e-3)
    first, needed = racers[0], [race.seconds_to_compare(racer) for racer in racers]
    assert race.choose_field(racers, 2 * sum(needed) + 1e-9) == racers  # in two rungs
    assert race.choose_field(racers, 2 * sum(needed) * 0.99) != racers
    assert race.choose_field(racers, needed[0]) == [first]
    assert race.choose_field(racers, 3.01 * first.interval) == [first]
    assert [racer.kind.cost for racer in race.choose_field(racers, 0.0)] == [1.0]  # the cheapest
    racers[0].points.append(RacePoint(0, 1, 0.0))  # the field was chosen before
    ranked = race.race(racers[0].context, racers)
    assert [racer.rung for racer in ranked] == [None, 2, 1, 1]
    assert all(racer.points for racer in ranked)  # each had a chance


def test_those_that_fail_drop_out(
    start: Callable[..., list[Racer]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, other = racers = start()
    advance(first, 1)
    monkeypatch.setattr(Racer, "_train", Mock(side_effect=DIVERGED))
    assert race.race(first.context, racers) == [first]  # its best epoch before is used
    assert first.exhausted
    assert other.failure == str(DIVERGED)
    assert f"{other.name} drops out" in caplog.text
    first.points.clear()
    with pytest.raises(InputError, match="diverged"):
        race.race(first.context, racers)


@pytest.mark.parametrize("step", ["race", "finish"])
def test_ctrl_c_ends_the_training_with_the_best_so_far(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    racers = start(averages=True)
    context, finish = racers[0].context, race.finish

    def ctrl_c_once(*words: Any) -> Any:
        monkeypatch.setattr(run, step, finish)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "tune_baselines", lambda *_: None)
    for name in ("race", "train_on"):
        monkeypatch.setattr(run, name, lambda _, racers: racers)
    monkeypatch.setattr(run, step, ctrl_c_once)
    advance(racers[1], 1)
    context.racers = []
    finished, _ = run.train_models(context, [racer.kind for racer in racers])
    assert finished is not None
    assert finished.fitted.interrupted
    assert finished.fitted.trained_on == ("train",)
    outcomes = [(racer.outcome, racer.won) for racer in context.racers]
    assert outcomes == [("stopped by Ctrl-C", False), ("won", True)]


def test_baselines_are_tuned_within_their_time(start: Callable[..., list[Racer]]) -> None:
    context, protocol = (racer := start()[0]).context, racer.kind.experiment
    race.tune_baselines(context, protocol)
    state = context.state
    assert {b.name for b in state.baselines} == set(baselines_of(protocol, context.dataset))
    assert state.baselines[0].ndcg_at_10 == max(b.ndcg_at_10 for b in state.baselines)
    known = State.open(context.plan.out, {"seed": 0}, fresh=False)
    assert known.baselines == state.baselines
    assert [b.tuned for b in known.baselines] == [b.tuned for b in state.baselines]
    race.tune_baselines(context, protocol)
    assert state.baselines == known.baselines  # none is tuned again
    short = start(limit=1e-9)[0].context
    short.state.baselines = []
    race.tune_baselines(short, protocol)
    assert not short.state.baselines


# --- The mean ------------------------------------------------------------------------------------


def of(racer: Racer, *qualities: float) -> None:
    """Say that a racer had these validations, one an epoch of a second."""
    racer.points = [RacePoint(n, n, quality) for n, quality in enumerate(qualities, 1)]
    racer.seconds = float(len(qualities))


@pytest.mark.parametrize(
    ("left", "epochs", "joins"), [(3, 2, True), (0.5, 2, False), (0.5, 3, True)]
)
def test_another_kind_trains_if_it_has_a_quarter_of_the_epochs_in_time(
    start: Callable[..., list[Racer]],
    monkeypatch: pytest.MonkeyPatch,
    left: float,
    epochs: int,
    joins: bool,
) -> None:
    winner, other = start(averages=True)
    of(winner, *[0.1] * 12)
    of(other, *[0.1] * epochs)
    clock = winner.context.clock
    refits = 1e9

    def moment(_: Context, share: float, __: Sequence[Racer]) -> float:
        return clock.spent + (refits if share == 1 else left)

    monkeypatch.setattr(Context, "moment", moment)
    monkeypatch.setattr(Racer, "train", lambda racer, _: None)
    assert race.train_on(winner.context, winner) == [winner, other][: 1 + joins]
    refits = winner.seconds_of_refit + other.seconds + 1.2  # .6 of a second to train in
    assert race.train_on(winner.context, winner) == [winner, other][: 1 + (epochs == 3)]
    winner.context.averages = False
    assert race.train_on(winner.context, winner) == [winner]


def test_after_a_race_of_one_another_kind_trains_if_it_has_the_time(
    start: Callable[..., list[Racer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    racers = {racer.name: racer for racer in start("balanced", averages=True)}
    winner, summed, hstu = racers["dot-product"], racers["target-attention"], racers["hstu"]
    context, tried = winner.context, list[Racer]()
    of(winner, *[0.1] * 12)
    context.state.rungs |= {racer.name: 0 for racer in (summed, hstu)}

    def train(racer: Racer, _: float) -> None:
        tried.append(racer)
        if racer is hstu:
            of(racer, 0.1)

    monkeypatch.setattr(Racer, "train", train)
    clock, seconds = context.clock, 3 * hstu.interval / hstu.experiment.training.validate_every
    left = 9.0
    monkeypatch.setattr(Racer, "seconds_of_refit", 0.0)

    def moment(_: Context, share: float, __: Sequence[Racer]) -> float:
        return clock.spent + (1e9 if share == 1 else left * seconds)

    monkeypatch.setattr(Context, "moment", moment)
    assert race.train_on(context, winner) == [winner, hstu]
    assert tried == [winner, summed, hstu]  # the first one fails
    assert (summed.outcome, hstu.outcome) == ("not raced: no time", "adds nothing")
    assert race.train_on(context, winner) == [winner, hstu]
    assert tried[3:] == [winner, summed, hstu]  # also where the second one was trained before
    del tried[3:]
    hstu.points, left = [], 1.5
    assert race.train_on(context, winner) == [winner, hstu]
    assert tried[3:] == [winner, hstu]  # the other one costs twice as much


@pytest.mark.parametrize(("needed", "kind"), [(-1.0, "averaged"), (9.0, "one model")])
def test_a_mean_must_be_better_than_its_first_member(
    start: Callable[..., list[Racer]],
    monkeypatch: pytest.MonkeyPatch,
    needed: float,
    kind: str,
) -> None:
    racers = start(averages=True)
    for racer in racers:
        advance(racer, 1)
    monkeypatch.setattr(race, "_GAIN_OF_MEAN", needed)
    members, choice = race.choose_members(racers[0].context, racers)
    assert members == (racers if kind == "averaged" else racers[:1])
    assert choice is not None
    assert choice.value == kind
    assert f"{racers[0].quality:.4f} of {racers[0].name}; " in choice.reason
    assert ("which is not 900% better" in choice.reason) == (kind == "one model")
    assert race.choose_members(racers[0].context, racers[:1]) == (racers[:1], None)
    racers[0].context.members = racers
    assert racers[1].outcome == f"won, averaged with {racers[0].name}"


def test_the_settings_of_a_mean_have_the_trainings_of_all(
    start: Callable[..., list[Racer]], tmp_path: Path
) -> None:
    chosen = []
    for number, racer in enumerate(start(), 1):
        advance(racer, number)
        chosen.append(racer.chosen_experiment(racer.validated()))
    mean = race.averaged_experiment(chosen)
    assert isinstance(mean.model, AveragedConfig)
    for member, alone in zip(members_of(mean), chosen, strict=True):
        trained = member.training
        assert member.model == alone.model
        assert trained.max_epochs <= mean.training.patience
        for name in ("exclude_seen", "max_epochs", "decay_fraction", "validate_every"):
            assert getattr(trained, name) == getattr(alone.training, name)
    file = tmp_path / "mean.yaml"
    file.write_text(dump_experiment(mean))
    assert load_experiment(file) == mean
