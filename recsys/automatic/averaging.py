"""The end of the training: the winner trains on, and its mean with another kind is tried."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from recsys.automatic.contender import Contender
from recsys.automatic.finish import Finished, finish
from recsys.automatic.race import partners
from recsys.config import AveragedConfig, Experiment
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.experiments.count_weights import choose_count_ensemble
from recsys.experiments.trainings import mean_of
from recsys.inference.catalogue import Catalogue
from recsys.serving.bundle import model_scorer
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

GAIN = 0.01
"""The share by which the mean must be better on validation, with counts: less may be chance, and
the mean takes twice the time and memory of a model."""

_SHARE, _NEARLY = 0.5, 0.95
"""The second model needs half of the epochs after which the winner had 95% of its best NDCG@10: the
winner's last gains are slow, on Beauty half of its epochs."""
_SHORT_REFIT = 0.25
"""Epochs of the refit of the second model, as a share of those before it, where time is short."""

Pair = tuple[Contender, Contender]
"""The members of a mean, the better one first."""


@dataclass(frozen=True, slots=True)
class Averaging:
    """What came of the mean of the winner with another model."""

    sentence: str
    """For the user."""
    pair: tuple[str, str] | None = None
    """The names of both members, the better one first, if their mean was tried."""
    chosen: bool = False
    """Whether the mean is the model of the answer."""

    def outcome(self, name: str) -> str:
        """Return what the mean meant for a contender, after a comma; empty if it was no member."""
        if self.pair is None or name not in self.pair:
            return ""
        other = self.pair[1] if name == self.pair[0] else self.pair[0]
        did = "averaged with" if self.chosen else "and no better averaged with"
        return f", {did} {other}"


class Ended(NamedTuple):
    """The end of the training."""

    contenders: list[Contender]
    """The better one of a pair first."""
    finished: Finished
    """The winner, or its mean with another one."""
    averaging: Averaging | None
    """None if no mean was to be tried."""


def end_training(
    contenders: list[Contender],
    left: Callable[..., float],
    valid: Holdout,
    announce: Callable[[str], None],
    *,
    averages: bool,
) -> Ended:
    """Train the winner of a race on as long as it gains; then refit it, or average it.

    Args:
        contenders: the winner first; see `race`.
        left: returns how many seconds training may still take if the given contender, or the mean
            of the given ones, is the answer.
        valid: the validation targets.
        announce: called with one line about what is tried next.
        averages: whether a mean may be tried, which time must be left for.
    """
    winner, averaging = contenders[0], None
    announce(f"training {winner.candidate.name}")

    def is_over(one: Contender) -> bool:
        after = one.epochs + one.experiment.training.validate_every  # the next validation
        return left(one) < one.seconds_to_end(after)

    hold(winner, is_over)
    second = None
    if averages and not winner.interrupted:
        others = partners(contenders)
        in_time = (one for one in others if seconds_for_mean(winner, one) <= left(winner, one))
        second = next(in_time, None)
        if second is None:
            averaging = _not_tried(winner, others)
    rest = [one for one in contenders if one not in {winner, second}]
    for one in rest:
        one.forget()
    if second is not None:
        left_for_both = partial(left, winner, second)
        trained = train_second(winner, second, left_for_both, announce)
        pair = winner, second = _better_first(winner, second)
        if trained:
            pair, finished, averaging = finish_both(pair, left_for_both, valid, announce)
            return Ended([*pair, *rest], finished, averaging)
        contenders = [*pair, *rest]  # Ctrl-C may have come late
        averaging = _stopped(winner, second)
    if averaging is not None:
        logger.debug("%s", averaging.sentence)
    announce(f"the refit of {winner.candidate.name}")
    return Ended(contenders, finish(winner, partial(left, winner)), averaging)


def hold(one: Contender, is_over: Callable[[Contender], bool]) -> None:
    """Train at the constant rate while that gains, until ``is_over`` after a validation.

    Ctrl-C is noted.
    """
    if one.exhausted or one.interrupted or is_over(one):
        return
    try:
        one.advance(is_over)
    except KeyboardInterrupt:
        one.interrupted = True
    except InputError as error:
        one.failure = str(error)
        logger.warning("%s: the best epoch before is used: %s", one.candidate.name, error)


def seconds_for_mean(winner: Contender, second: Contender) -> float:
    """Return the seconds that a mean needs at least: for the second model, and both ends.

    The second trains for `epochs_to_train`, and its refit may be short.
    """
    epochs = max(second.best_epoch, epochs_to_train(second, winner))
    end = second.seconds_to_end(epochs, _short_refit(epochs))
    return winner.seconds_to_end(winner.best_epoch) + end


def epochs_to_train(other: Contender, winner: Contender) -> int:
    """Return the epochs, all in all, after which another model may be compared with a winner.

    Training stops at validations only; it does not go on where it gains nothing more.
    """
    needed = math.ceil(_SHARE * winner.epochs_to(_NEARLY))
    if other.exhausted or other.epochs >= needed:
        return other.epochs
    every = other.experiment.training.validate_every
    return math.ceil(needed / every) * every


def _short_refit(epochs: int) -> int:
    return max(1, round(_SHORT_REFIT * epochs))


def name_of(winner: Contender, averaging: Averaging | None) -> str:
    """Return the name of the model that is the answer if no baseline is better."""
    if averaging is None or averaging.pair is None or not averaging.chosen:
        return winner.candidate.name
    return "the mean of " + " and ".join(averaging.pair)


def train_second(
    winner: Contender,
    second: Contender,
    seconds_left: Callable[[], float],
    announce: Callable[[str], None],
) -> bool:
    """Train the second model on at the constant rate, and return whether it may be averaged.

    It trains while it gains, as long as time is left for the refit of both; up to `epochs_to_train`
    also if its own refit has to be short then. Ctrl-C ends it, and marks the winner as interrupted.

    Args:
        winner: at the end of its training at the constant rate.
        second: see `partners`.
        seconds_left: returns how many seconds the training of both may still take.
        announce: called with one line about what is tried next.
    """

    def is_over(one: Contender) -> bool:
        left = seconds_left()
        after = one.epochs + one.experiment.training.validate_every  # the next validation
        ends = winner.seconds_to_end(winner.best_epoch) + one.seconds_to_end(after)
        is_young = one.epochs < epochs_to_train(one, winner)
        is_young &= seconds_for_mean(winner, one) <= left
        return left < ends and not is_young

    second.is_partner = True
    if not second.exhausted:
        logger.debug(
            "%s trains on after %d epochs, for the mean with %s",
            *(second.candidate.name, second.epochs, winner.candidate.name),
        )
    announce(f"training {second.candidate.name}, for the mean with {winner.candidate.name}")
    hold(second, is_over)
    winner.interrupted = second.interrupted
    return not second.interrupted


def finish_both(
    pair: Pair,
    seconds_left: Callable[[], float],
    valid: Holdout,
    announce: Callable[[str], None],
) -> tuple[Pair, Finished, Averaging]:
    """Finish two models, and let validation choose the better one or the mean.

    All are compared as the answer is scored, with counts. The better one is the first of the pair
    that is returned.

    Args:
        pair: both, the better one first.
        seconds_left: returns how many seconds the training of both may still take.
        valid: the validation targets.
        announce: called with one line about what is tried next.
    """
    winner, second = pair
    names = winner.candidate.name, second.candidate.name
    announce(f"the refit of {names[0]}")
    kept = second.seconds_to_end(second.best_epoch)
    if winner.seconds_to_end(winner.best_epoch) + kept > seconds_left():
        kept = second.seconds_to_end(second.best_epoch, _short_refit(second.best_epoch))
    first = finish(winner, lambda: seconds_left() - kept)
    if not _is_refitted(first):
        if not winner.interrupted:  # alone it has the time that was kept for the other
            first = finish(winner, seconds_left)
        return pair, first, _not_refitted(*names, names[0])
    announce(f"the refit of {names[1]}")
    other = finish(second, seconds_left)
    if not _is_refitted(other):
        return pair, first, _not_refitted(*names, names[1])
    announce(f"weighing the mean of {names[0]} and {names[1]}")
    try:
        return _best_of(first, other, pair, valid)
    except KeyboardInterrupt:
        return pair, first, _stopped(winner, second)


def _best_of(
    first: Finished, second: Finished, pair: Pair, valid: Holdout
) -> tuple[Pair, Finished, Averaging]:
    """Return the mean if it is better than the better of the two by `GAIN`, else that one."""
    dataset = pair[0].dataset
    alone, other = (
        ndcg_with_counts(each.experiment, dataset, valid, each.fitted) for each in (first, second)
    )
    if other > alone:  # the order was that at the constant rate, without counts
        first, second, alone, other, pair = second, first, other, alone, (pair[1], pair[0])
    experiment = averaged_experiment([first.experiment, second.experiment])
    catalogue = Catalogue.of(experiment.model, dataset)
    try:
        catalogue.check_memory(experiment.model, 2)
    except InputError as error:
        return pair, first, Averaging(f"{pair[0].candidate.name} is not averaged: {error}.")
    members = first.fitted, second.fitted
    mean = Finished(experiment, mean_of(experiment, dataset, catalogue, valid, members))
    both = ndcg_with_counts(experiment, dataset, valid, mean.fitted)
    names = pair[0].candidate.name, pair[1].candidate.name
    both_names = " and ".join(names)
    figures = (
        f"validation NDCG@10 with counts {both:.4f}, {alone:.4f} of {names[0]} and "
        f"{other:.4f} of {names[1]} alone"
    )
    if pays(both, alone):
        sentence = f"The mean of {both_names} is better: {figures}."
        return pair, mean, Averaging(sentence, names, chosen=True)
    rule = f"it would have to be {GAIN:.0%} better"
    sentence = f"The mean of {both_names} did not pay: {figures}; {rule}."
    return pair, first, Averaging(sentence, names)


def pays(mean: float, alone: float) -> bool:
    """Return whether a validation NDCG@10 is so much better that a mean of models is worth it."""
    return mean >= (1 + GAIN) * alone


def ndcg_with_counts(
    experiment: Experiment, dataset: PreparedDataset, valid: Holdout, fitted: Fitted
) -> float:
    """Return the validation NDCG@10 of a model of the best epoch, with counts if it has any."""
    config = experiment.count_ensemble
    if config is None:
        _, ranks = fitted.curve.validated()
        return float(ranks.values("ndcg_at_10").mean())
    model = model_scorer(fitted.validated_model(experiment, dataset), experiment)
    histories, seen = dataset.histories("valid"), experiment.evaluation.seen
    choice = choose_count_ensemble(model, histories, valid, seen, config.weights)
    return float(choice.ranks.values("ndcg_at_10").mean())


def averaged_experiment(members: Sequence[Experiment]) -> Experiment:
    """Return the experiment that trains all members from the beginning, and averages them.

    Args:
        members: experiments that differ in the model and in the length of the training only.
    """
    first, longest = members[0], max(one.training.max_epochs for one in members)
    own = ("max_epochs", "decay_fraction", "validate_every", "exclude_seen")
    model = AveragedConfig.model_validate(
        {
            "kind": "averaged",
            "members": [
                {"model": one.model, **one.training.model_dump(include=set(own))} for one in members
            ],
        }
    )
    changes: dict[str, object] = {"max_epochs": longest, "patience": longest, "exclude_seen": None}
    if len({one.training.precision for one in members}) > 1:
        changes["precision"] = "auto"
    training = first.training.model_copy(update=changes)
    return first.model_copy(update={"model": model, "training": training})


def _better_first(one: Contender, other: Contender) -> Pair:
    return (other, one) if other.quality > one.quality else (one, other)


def _not_tried(winner: Contender, seconds: Sequence[Contender]) -> Averaging:
    name = winner.candidate.name
    if not seconds:
        return Averaging(f"No other kind of model was trained that {name} could be averaged with.")
    return Averaging(f"No time was left for the mean of {name} and {seconds[0].candidate.name}.")


def _stopped(winner: Contender, second: Contender) -> Averaging:
    names = f"{winner.candidate.name} and {second.candidate.name}"
    return Averaging(f"Ctrl-C stopped the mean of {names}.")


def _not_refitted(winner: str, second: str, which: str) -> Averaging:
    reason = f"{which} could not be refitted in the time for both"
    return Averaging(f"There is no mean of {winner} and {second}: {reason}.")


def _is_refitted(finished: Finished) -> bool:
    return "valid" in finished.fitted.trained_on
