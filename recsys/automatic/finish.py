"""The end of an automatic run: members are chosen and refitted; the answer is named and tested."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from recsys.automatic.clock import WAYS_AGAIN, WAYS_TO_COUNT
from recsys.automatic.racer import Course, Racer
from recsys.automatic.state import Answer, Entry, MeasuredBaseline, Trained
from recsys.baselines.transitions import PCTMSettings
from recsys.config import AveragedConfig, Experiment, flatten
from recsys.errors import InputError, first_line, first_waits
from recsys.evaluation.tables import RankTable
from recsys.experiments.baselines import fit_baseline, fit_baseline_bundle
from recsys.experiments.count_weights import GRID, RECENT, choose_count_ensemble
from recsys.experiments.fit import FinalScorer, evaluate_and_write
from recsys.experiments.results import Run
from recsys.experiments.trainings import mean_of
from recsys.folders.digests import file_sha256
from recsys.folders.manifest import MANIFEST
from recsys.reports.run_page import Choice
from recsys.serving.bundle import model_scorer
from recsys.tracking.runs import nest_run
from recsys.tracking.tracker import track
from recsys.training.checkpoints import Checkpoint, CheckpointError, TrainingState
from recsys.training.curve import MONITOR
from recsys.training.device import training_device
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

_GAIN = 0.01
"""The share by which a mean must be better on validation than its best member, and a model than the
best baseline, with counts: less may be chance, and each model takes its time and memory."""
_WaysToCount = tuple[Sequence[PCTMSettings], Sequence[float]]
"""Settings of the transition counts, and shares of the interactions that are the newest."""
_AGAIN = "Ctrl-C again ends the run at once, and the same command resumes it"


class Finished(NamedTuple):
    """A model whose training has ended."""

    trained: Trained
    fitted: Fitted


# --- Members -------------------------------------------------------------------------------------


def choose_members(course: Course, racers: Sequence[Racer]) -> tuple[list[Racer], Choice | None]:
    """Return the best racer on validation, and those that its mean with them gains `_GAIN` by.

    All are compared as the answer is scored, with counts; what came of a mean is said, too, if one
    was to be tried.
    """
    best = max(racers, key=lambda racer: racer.quality)
    if not course.averages or course.clock.stopped:
        return [best], None
    if len(racers) == 1:
        reason = f"No other model had the time to be averaged with {best.name}."
        return [best], Choice("model.kind", "one model", reason)
    both, clock = " and ".join(racer.name for racer in racers), course.clock
    ranking = sum(racer.seconds_per_ranking for racer in racers)
    # The other racers, and as many means, are weighed by the ways that the first one chose.
    ways = WAYS_TO_COUNT + 2 * (len(racers) - 1) * (1 + 1 + WAYS_AGAIN)
    weighing = course.speed.seconds_to_weigh(len(course.valid.histories), 2 * ranking, ways)
    if clock.spent + weighing > course.moment(1.0, *racers):
        reason = f"No time was left to weigh the mean of {both}."
        return [best], Choice("model.kind", "one model", reason)
    course.say(f"weighing the mean of {both}")
    ways_to_count: _WaysToCount = GRID, RECENT
    alone: dict[Racer, float] = {}
    for racer in racers:  # the first, the winner of the race, chooses the ways to count for all
        fitted = racer.validated()
        alone[racer], ways_to_count = _with_counts(
            course, racer.chosen_experiment, fitted, ways_to_count
        )
    best, *others = sorted(racers, key=alone.__getitem__, reverse=True)
    members, quality, said = [best], alone[best], list[str]()
    for other in others:
        tried = [*members, other]
        names = " and ".join(racer.name for racer in tried)
        try:
            mean = mean_of_members(course, tried, [racer.validated() for racer in tried])
        except InputError as error:
            said.append(f"{best.name} is not averaged: {error}.")
            break
        averaged, _ = _with_counts(course, *mean, ways_to_count)
        figures = f"validation NDCG@10 with counts {averaged:.4f}, "
        figures += " and ".join(f"{alone[racer]:.4f} of {racer.name}" for racer in tried) + " alone"
        if pays(averaged, quality):
            members, quality = tried, averaged
            said.append(f"The mean of {names} is better: {figures}.")
        else:
            rule = f"it would have to be {_GAIN:.0%} better"
            said.append(f"The mean of {names} did not pay: {figures}; {rule}.")
    kind = "averaged" if len(members) > 1 else "one model"
    return members, Choice("model.kind", kind, " ".join(said))


def pays(mean: float, alone: float) -> bool:
    """Return whether a validation NDCG@10 is so much better that another member is worth it."""
    return mean >= (1 + _GAIN) * alone


def _with_counts(
    course: Course, experiment: Experiment, fitted: Fitted, ways: _WaysToCount
) -> tuple[float, _WaysToCount]:
    """Return the validation NDCG@10 with the best of some ways to count, and those ways alone."""
    if experiment.count_ensemble is None:
        return _ndcg(fitted.curve.validated()[1]), ways
    model, seen = model_scorer(fitted.model, experiment), experiment.evaluation.seen
    weights = experiment.count_ensemble.weights
    choice = choose_count_ensemble(model, course.dataset, course.valid, seen, weights, *ways)
    return _ndcg(choice.ranks), ([choice.settings], [choice.recent_share])


def mean_of_members(
    course: Course, members: Sequence[Racer], fitted: Sequence[Fitted]
) -> tuple[Experiment, Fitted]:
    """Return the mean of some trained members, with the settings that repeat it.

    Raises:
        InputError: it does not fit into the memory.
    """
    experiment = averaged_experiment([member.chosen_experiment for member in members])
    course.catalogue.check_memory(experiment.model, 2)
    mean = mean_of(experiment, course.dataset, course.catalogue, course.valid, fitted)
    return experiment, mean


def averaged_experiment(members: Sequence[Experiment]) -> Experiment:
    """Return the experiment that trains all members from the beginning, and averages them.

    Args:
        members: experiments that differ in the model and in the length of the training only.
    """
    first, longest = members[0], max(member.training.max_epochs for member in members)
    own = {"max_epochs", "decay_fraction", "validate_every", "exclude_seen"}
    trees = [
        {"model": member.model, **member.training.model_dump(include=own)} for member in members
    ]
    model = AveragedConfig.model_validate({"kind": "averaged", "members": trees})
    changes: dict[str, object] = {"max_epochs": longest, "patience": longest, "exclude_seen": None}
    if len({member.training.precision for member in members}) > 1:
        changes["precision"] = "auto"
    training = first.training.model_copy(update=changes)
    return first.model_copy(update={"model": model, "training": training})


# --- The refit -----------------------------------------------------------------------------------


def finish(course: Course, racers: Sequence[Racer]) -> Finished:
    """Choose the members of the answer, and refit each on the training and validation parts."""
    members, averaging = choose_members(course, racers)
    for racer in racers:
        if racer not in members:
            racer.forget()
    rising = not (members[0].exhausted or course.clock.stopped)
    names = " and ".join(member.name for member in members)
    fitted, needed = list[Fitted](), [m.best_epoch * m.seconds_per_refit_epoch for m in members]
    for number, member in enumerate(members):
        course.say(f"the refit of {member.name}")
        left = course.moment(1.0, *members) - course.clock.spent
        own = needed[number] / max(sum(needed[number:]), 1e-9)
        fitted.append(member.refit(course.clock.spent + own * left))
    name, experiment, model = names, members[0].chosen_experiment, fitted[0]
    if len(members) > 1:
        name = f"the mean of {names}"
        experiment, model = mean_of_members(course, members, fitted)
    tell_outcomes(course, [member.name for member in members])
    return Finished(Trained(name, experiment, model.trained_on, rising, averaging), model)


def tell_outcomes(course: Course, chosen: Sequence[str] = ()) -> None:
    """Say what became of each racer, and put those first whose model was chosen."""
    for entry in course.state.racers:
        entry.chosen = entry.name in chosen
        entry.outcome = _outcome(entry, chosen, stopped=course.clock.stopped)
    course.state.racers.sort(key=lambda entry: not entry.chosen)


def _outcome(entry: Entry, chosen: Sequence[str], *, stopped: bool) -> str:
    if entry.failure and not entry.points:
        return f"not trained: {entry.failure.partition(': choose ')[0]}"  # settings follow a log
    if entry.rung == 0:
        return "not raced: the time was too short to compare it"
    others = " and ".join(name for name in chosen if name != entry.name)
    averaged = f", averaged with {others}" * (entry.chosen and len(chosen) > 1)
    if chosen and entry.name == chosen[0]:
        return f"won{averaged}"
    if entry.rung:
        return f"dropped in rung {entry.rung}{averaged}"
    if entry.is_again:
        return f"trained for a mean{averaged}"
    return "stopped by Ctrl-C" if stopped else f"won the race{averaged}"


def keep(course: Course, finished: Finished) -> None:
    """Write the model of a training that has ended: one that is killed in its test is kept.

    If Ctrl-C ended the training, a run that a second one ends resumes the race instead.
    """
    if course.clock.stopped:
        return
    state, fitted = course.state, finished.fitted
    weights = TrainingState(fitted.model.state_dict())
    state.folder.mkdir(parents=True, exist_ok=True)
    state.file("model").write(Checkpoint("", 0.0, weights, fitted.curve))
    state.trained = finished.trained
    state.write(course.clock.spent)


def kept(course: Course) -> Finished | None:
    """Return the model of an interrupted run whose training has ended; None if there is none."""
    trained = course.state.trained
    if trained is None:
        return None
    try:
        checkpoint = course.state.file("model").read()
    except CheckpointError as error:
        logger.warning("%s", first_line(error))
        checkpoint = None
    if checkpoint is None or checkpoint.chosen is None:
        course.state.trained = None
        return None
    histories = course.dataset.histories("test" if "valid" in trained.trained_on else "valid")
    weights, catalogue = checkpoint.state.checkpoint, course.catalogue
    model = catalogue.restored_model(trained.experiment.model, histories, weights)
    curve = checkpoint.chosen
    return Finished(
        trained, Fitted(model.to(training_device()), trained.trained_on, curve, False, catalogue)
    )


# --- The answer ----------------------------------------------------------------------------------


def answer(course: Course, finished: Finished | None, protocol: Experiment, why: str) -> Experiment:
    """Choose between the model, if there is one, and the best baseline; test and write the answer.

    Args:
        course: what all steps share; its state gets the answer.
        finished: the model.
        protocol: settings of any kind of model.
        why: why there is no model.

    Returns:
        The settings of the answer.
    """
    best = next(iter(course.state.baselines), None)
    if finished is None:
        return _answer_with(course, best, protocol, why)
    trained = finished.trained
    try:
        run, name, figures = _test_model(course, finished, best)
    except (InputError, OSError):
        raise
    except Exception as error:
        if best is None:
            raise
        logger.warning("%s cannot be tested: %s", trained.name, first_line(error), exc_info=True)
        return _answer_with(course, best, protocol, f"{trained.name} could not be tested")
    if name is None:
        return _answer_with(course, best, protocol, figures, run)
    sentence = f"The answer is {name}: validation NDCG@10 {figures}"
    if best is not None:
        sentence += f", and {best.ndcg_at_10:.4f} of the best baseline, {words_for(best.name)}"
    sentence += "." if trained.averaging is None else f". {trained.averaging.reason}"
    course.state.answer = Answer(run, sentence, file_sha256(run.bundle / MANIFEST))
    return trained.experiment


def _test_model(
    course: Course, finished: Finished, best: MeasuredBaseline | None
) -> tuple[Run, str | None, str]:
    """Test and write the model; return its name, None if a baseline is better, and figures."""
    experiment, fitted, verdict = finished.trained.experiment, finished.fitted, list[str | None]()

    def name(final: FinalScorer) -> str | None:
        verdict.extend(_judge(finished.trained, final, best))
        return verdict[0]

    with track(experiment, course.dataset, experiment.family, flatten(experiment)) as tracker:
        for number, metrics in enumerate(fitted.curve.epochs, 1):
            if MONITOR in metrics:
                tracker.log_metrics(metrics, number)
        words = experiment, course.dataset, course.held_out, fitted, None, course.phases
        run = evaluate_and_write(*words, course.plan.out, tracker, course.progress, name)
    return run, verdict[0], str(verdict[1])


def _judge(
    trained: Trained, final: FinalScorer, best: MeasuredBaseline | None
) -> tuple[str | None, str]:
    """Return the name of the answer, None if no model beats the best baseline, and the figures.

    With its counts a model must be better by `_GAIN`: else the baseline, which is cheaper to keep,
    is the answer. If the model alone is worse than the baseline, the answer is named after the
    counts first.
    """
    quality, alone, counts = _ndcg(final.valid), _ndcg(final.valid_alone), final.count_ensemble
    figures, name = f"{quality:.4f} of {trained.name}", trained.name
    is_blend = counts is not None and any(
        (counts.weight, counts.repeat_weight, counts.recent_weight)
    )
    if is_blend:
        figures = f"{quality:.4f} of {name} with counts, {alone:.4f} of it alone"
    if best is None:
        return name, figures
    if not pays(quality, best.ndcg_at_10):
        return None, figures
    if is_blend and alone < best.ndcg_at_10:
        counted = "transitions_and_repeats" if final.valid.protocol.seen == "allow" else "pctm"
        if counts is not None and not (counts.weight or counts.repeat_weight):
            counted = "recent_popularity"
        name = f"{words_for(counted)} with {name}"
        name += " that had no time to learn" * trained.rising
    return name, figures


def _answer_with(
    course: Course,
    best: MeasuredBaseline | None,
    protocol: Experiment,
    ours: str,
    model: Run | None = None,
) -> Experiment:
    """Answer with a baseline, say why, and rename the run of the model that it beats, if any."""
    if best is None:
        raise ValueError("neither a model nor a baseline was tried")
    name, out, beaten = words_for(best.name), course.plan.out, None
    shared = protocol.model_dump(include={"name", "seed", "data", "evaluation", "tracking"})
    tree = {**shared, "baseline": best.name, "training": {"refit": True}}
    chosen, test = Experiment.model_validate(tree), course.held_out.test
    run = fit_baseline_bundle(chosen, course.dataset, out, tuned=best.tuned, test=test, answer=name)
    if model is not None:  # else both have the name of the answer
        nest_run(model.run_id, f"{out.name}-model", run.run_id, run.tracking)
        beaten = model.run_id
    for entry in course.state.racers:
        if entry.chosen:
            entry.chosen, entry.outcome = False, "the best model, but a baseline is better"
    sentence = (
        f"The answer is {name}, a baseline: validation NDCG@10 {best.ndcg_at_10:.4f}, and {ours}."
    )
    digest = file_sha256(run.bundle / MANIFEST)
    course.state.answer = Answer(run, sentence, digest, best.name, beaten)
    return chosen


def evaluate_baselines(course: Course, protocol: Experiment) -> None:
    """Test all baselines but the one that is the answer, best first.

    Those that were tested before are not tested again. The rest is left out when the time for it is
    over, but the best one; and at Ctrl-C, also where it came while the answer was tested.
    """
    state, clock, test = course.state, course.clock, course.held_out.test
    answer = state.chosen_answer
    others = [b for b in state.baselines if b.name != answer.baseline]
    try:
        for number, baseline in enumerate([] if course.skips_tests else others, 1):
            if baseline.name in state.tested:
                continue
            if number > 1 and clock.left < clock.seconds_of_page:
                logger.debug("%d of %d baselines are tested: no time", number - 1, len(others))
                break
            course.say(f"testing baseline {number} of {len(others)}: {baseline.name}")
            parent, tuned = answer.run.run_id, baseline.tuned
            state.tested[baseline.name] = fit_baseline(
                baseline.name, protocol, course.dataset, tuned=tuned, test=test, parent=parent
            )
            state.write(clock.spent)
    except KeyboardInterrupt:
        course.skips_tests = True
    if course.skips_tests:
        logger.warning("Ctrl-C: %d of %d baselines are tested", len(state.tested), len(others))


@contextmanager
def answering(course: Course) -> Iterator[None]:
    """Test the answer to the end at the first Ctrl-C of the run; a second one ends the run."""
    course.say("testing")
    if course.clock.stopped:
        logger.warning("Ctrl-C: the best so far is tested; %s", _AGAIN)
        yield
        return
    said = "Ctrl-C: the test of the best model ends, those of baselines are left out; %s"
    with first_waits(signal.SIGINT, say=lambda: logger.warning(said, _AGAIN)) as came:
        yield
    course.skips_tests = bool(came)


def words_for(baseline: str) -> str:
    """Return a baseline's name for people.

    >>> words_for("pctm"), words_for("item_knn")
    ('PCTM', 'item knn')
    """
    return "PCTM" if baseline == "pctm" else baseline.replace("_", " ")


def _ndcg(ranks: RankTable) -> float:
    return float(ranks.values("ndcg_at_10").mean())
