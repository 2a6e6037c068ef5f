"""The race: baselines are tuned, racers train in rungs of equal time, the winner is refitted.

Successive halving: after each rung the worse half drops out. Source: Jamieson and Talwalkar 2016,
https://arxiv.org/abs/1502.07943. Rungs are counted in seconds and not in epochs, because the best
model within a time limit is wanted.
"""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from recsys.automatic.racer import Context, MeasuredBaseline, Racer, names_of
from recsys.baselines.tuned import BASELINES
from recsys.config.experiment import Experiment
from recsys.config.model import AveragedConfig
from recsys.errors import InputError
from recsys.experiments.baselines import baselines_of
from recsys.experiments.trainings import mean_of
from recsys.reports.run_page import Choice
from recsys.training.epochs import MONITOR
from recsys.training.loop import Fitted

_BASELINE_SHARE = 0.06
"""Share of the limit for tuning baselines."""
_FIRST = ("transitions_and_repeats", "pctm")
"""Those that are most often the best, if time is short."""
_COSTLY = {"ease": 6_000, "item_knn": 30_000, "matrix_factorisation": 100_000}
"""Those that begin in the first quarter of the time alone; the catalogues that are too large."""
_RACE, _TRAINING = 0.4, 0.65
"""Shares of the training time after which the race, and the training, end; then comes the refit."""
_FEWEST, _PASSES, _SOFT_PASSES = 3, 8, 5
"""Validations of each racer, and passes over the log (with soft labels), in the first rung: after
fewer, chance decides, or how fast a model learns and not how well."""
_ENOUGH, _GAIN_OF_MEAN = 0.25, 0.03
"""The share of the winner's epochs that another kind needs, and the share by which their mean must
be better, without counts, which leave a third of it."""


def tune_baselines(context: Context, protocol: Experiment) -> None:
    """Tune the baselines within their time, the most promising first, unless they are known."""
    state, clock, dataset = context.state, context.clock, context.dataset
    names = sorted(baselines_of(protocol, dataset), key=lambda name: name not in _FIRST)
    seconds, known = _BASELINE_SHARE * clock.limit, {baseline.name for baseline in state.baselines}
    until, targets = clock.spent + seconds, context.held_out.valid
    for number, name in enumerate(names, 1):
        latest = until - 0.75 * seconds if name in _COSTLY else until
        too_large = dataset.num_items > _COSTLY.get(name, math.inf)
        if name in known or too_large or clock.spent > latest:
            continue
        context.say(f"baseline {number} of {len(names)}: {name}")
        started, seen = time.monotonic(), protocol.evaluation.seen
        best = BASELINES[name].measure(dataset, targets, seen, lambda: clock.spent > until)
        took, quality = time.monotonic() - started, best.ndcg_at_10
        tuned = MeasuredBaseline(name, repr(best.settings), took, quality, best.seconds)
        state.baselines.append(tuned)
        state.baselines.sort(key=lambda baseline: baseline.ndcg_at_10, reverse=True)
        state.write(clock.spent)


# --- The race ------------------------------------------------------------------------------------


def race(context: Context, racers: Sequence[Racer]) -> list[Racer]:
    """Train racers in rungs of equal time, drop the worse half after each; return the best first.

    Raises:
        InputError: none can be trained; it says why the first cannot.
    """
    clock, until, dropped = context.clock, context.moment(_RACE), context.state.rungs
    if not dropped and not any(racer.points for racer in racers):
        raced = choose_field(racers, until - clock.spent)
        dropped |= {racer.name: 0 for racer in racers if racer not in raced}
    field = [racer for racer in racers if racer.name not in dropped]
    rungs = _num_rungs(field)
    for rung in range(1, rungs + 1):
        ends = clock.spent + (until - clock.spent) / (rungs - rung + 1)
        for number, racer in enumerate(field):
            context.say(f"rung {rung} of {rungs}: {racer.name} ({number + 1} of {len(field)})")
            racer.train(clock.spent + (ends - clock.spent) / (len(field) - number))
        field = _by_merit(field)
        if not field:
            raise InputError(next(racer.failure for racer in racers if racer.failure))
        survivors = math.ceil(len(field) / 2)
        dropped |= {loser.name: rung for loser in field[survivors:]}
        field = field[:survivors]
    return _by_merit(racers)


def choose_field(racers: Sequence[Racer], seconds: float) -> list[Racer]:
    """Return those that a race of so many seconds can compare, the most promising first.

    If it can compare none, the most promising one that can be validated a few times in it. With
    soft labels none takes the time of a more promising one, which is to join the mean.
    """
    field = list(racers[:1])
    for racer in racers[1:]:
        wider = [*field, racer]
        needed = sum(map(seconds_to_compare, wider)) * _num_rungs(wider)
        if needed <= seconds:
            field = wider
        elif racer.experiment.training.soft_labels:
            break
    if len(field) > 1:
        return field
    validated = [racer for racer in racers if _FEWEST * racer.interval <= seconds]
    return validated[:1] or [min(racers, key=lambda racer: racer.kind.cost)]


def seconds_to_compare(racer: Racer) -> float:
    """Return the seconds that a racer needs in the first rung."""
    training = racer.experiment.training
    passes = _SOFT_PASSES if training.soft_labels else _PASSES
    validations = math.ceil(passes * training.epochs_per_pass / training.validate_every)
    return max(_FEWEST, validations) * racer.interval


def _num_rungs(field: Sequence[Racer]) -> int:
    return max(1, math.ceil(math.log2(max(1, len(field)))))


def _by_merit(racers: Sequence[Racer]) -> list[Racer]:
    """Return those that were validated: the last to drop out first, then by their quality."""

    def merit(racer: Racer) -> tuple[float, float]:
        return math.inf if racer.rung is None else racer.rung, racer.quality

    return sorted((racer for racer in racers if racer.points), key=merit, reverse=True)


# --- The mean of two -----------------------------------------------------------------------------


def train_on(context: Context, winner: Racer) -> list[Racer]:
    """Train the winner of a race on while it gains; then one of another kind, if time is left.

    It is the most promising one that has the time, whether it was in the race or not: models of one
    kind, such as two with a dot product, err alike. A mean is worth less than the refits of its
    members, so that these have their time.
    """
    clock = context.clock
    context.say(f"training {winner.name}")
    winner.train(context.moment(_TRAINING, [winner]))
    if not context.averages:
        return [winner]
    family = winner.experiment.model.family
    others = [r for r in context.racers if r.experiment.model.family != family and not r.failure]
    refit = winner.seconds_of_refit
    for other in others:
        until, end = (context.moment(share, [winner, other]) for share in (_TRAINING, 1.0))
        until = min(until, (clock.spent + end - refit - other.seconds) / 2)
        missing = max(0.0, _ENOUGH * winner.epochs - other.epochs)
        seconds = missing / other.experiment.training.validate_every * other.interval
        if not missing or clock.spent + seconds <= until:
            context.say(f"training {other.name}, for the mean with {winner.name}")
            other.train(until)
            if other.points:
                return [winner, other]
    return [winner]


def choose_members(context: Context, racers: Sequence[Racer]) -> tuple[list[Racer], Choice | None]:
    """Return the first racer, with the second if their mean gains enough; say what came of it."""
    alone, tried = racers[0], list(racers[:2])
    if len(tried) < 2 or not context.averages or context.clock.stopped:
        return [alone], None
    said, names = f"validation NDCG@10: {alone.quality:.4f} of {alone.name}", names_of(tried)
    context.say(f"validating the mean of {names}")
    try:
        _, mean = mean_of_members(context, tried, [member.validated() for member in tried])
    except InputError as error:  # it does not fit into the memory
        return [alone], Choice("model.kind", "one model", f"{said}; no mean, {error}")
    quality = mean.curve.epochs[-1][MONITOR]
    said += f"; {quality:.4f} of the mean of {names}"
    if quality >= (1 + _GAIN_OF_MEAN) * alone.quality:
        return tried, Choice("model.kind", "averaged", said)
    worse = f", which is not {_GAIN_OF_MEAN:.0%} better"
    return [alone], Choice("model.kind", "one model", said + worse)


def mean_of_members(
    context: Context, members: Sequence[Racer], fitted: Sequence[Fitted]
) -> tuple[Experiment, Fitted]:
    """Return the mean of some trained members, validated, with the settings that repeat it."""
    trained = zip(members, fitted, strict=True)
    experiment = averaged_experiment([member.chosen_experiment(alone) for member, alone in trained])
    context.catalogue.check_memory(experiment.model, 2)
    return experiment, mean_of(experiment, context.held_out.valid, fitted)


def averaged_experiment(members: Sequence[Experiment]) -> Experiment:
    """Return the experiment that trains all members from the beginning, and averages them."""
    first, longest = members[0], max(member.training.max_epochs for member in members)
    own = {"max_epochs", "validate_every", "exclude_seen"}
    trees = [{"model": mine.model, **mine.training.model_dump(include=own)} for mine in members]
    model = AveragedConfig.model_validate({"kind": "averaged", "members": trees})
    changes: dict[str, object] = {"max_epochs": longest, "patience": longest, "exclude_seen": None}
    if len({member.training.precision for member in members}) > 1:
        changes["precision"] = "auto"
    return first.model_copy(update={"model": model}).with_training(**changes)


# --- The refit -----------------------------------------------------------------------------------


class Finished(NamedTuple):
    """A model whose training has ended."""

    name: str
    """Its kind, or those of a mean."""
    experiment: Experiment
    """The settings that repeat it from the beginning."""
    fitted: Fitted
    averaging: Choice | None
    """What came of a mean of models, if one was tried."""
    seconds: float
    """Since the race began."""


def finish(context: Context, racers: Sequence[Racer]) -> Finished:
    """Choose the members of the answer, and refit each on the training and validation parts."""
    members, averaging = choose_members(context, racers)
    needed, fitted = [member.seconds_of_refit for member in members], list[Fitted]()
    for number, member in enumerate(members):
        context.say(f"the refit of {member.name}")
        left = context.moment(1.0, members) - context.clock.spent
        own = needed[number] / max(sum(needed[number:]), 1e-9)
        fitted.append(member.refit(context.clock.spent + own * left))
    context.members, name, answer = members, names_of(members), fitted[0]
    experiment = members[0].chosen_experiment(answer)
    if len(members) > 1:
        name = f"the mean of {name}"
        experiment, answer = mean_of_members(context, members, fitted)
    seconds = context.clock.spent - (context.state.race_began or 0.0)
    return Finished(name, experiment, answer, averaging, seconds)
