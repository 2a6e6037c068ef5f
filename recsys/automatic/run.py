"""From a log to a recommender: prepare, tune baselines, race, refit, test, and write the page."""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Unpack

from rich.progress import Progress

from recsys.automatic.clock import Clock, measure, parse_time_limit, sampled
from recsys.automatic.facts import LogFacts, choose_split, describe_machine, explained
from recsys.automatic.finish import (
    Finished,
    answer,
    answering,
    evaluate_baselines,
    finish,
    keep,
    kept,
    tell_outcomes,
)
from recsys.automatic.page import write_page
from recsys.automatic.race import race, train_on, tune_baselines
from recsys.automatic.racer import Course, Racer
from recsys.automatic.rules import (
    TIME_LIMITS,
    Kind,
    Plan,
    choose_features,
    choose_shared,
    propose,
)
from recsys.automatic.state import Answer, State
from recsys.config import DataConfig, Experiment, dump_experiment, parse_experiment
from recsys.data.audit import audit, warnings_in
from recsys.data.features.encoders import Encoders
from recsys.data.preparation import held, write_dataset
from recsys.data.prepared import LogWords, PreparedDataset, with_words
from recsys.data.sources import find_named_dataset, source_name
from recsys.data.tables import TableSource
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.results import Phases, check_out
from recsys.folders.atomic import new_file
from recsys.folders.locks import sole_use
from recsys.inference.catalogue import Catalogue
from recsys.progress import shown, stage
from recsys.reports.run_page import Choice
from recsys.tracking import artifacts
from recsys.tracking.store import open_store, without_password

logger = logging.getLogger(__name__)

_COUNTED = ("users", "items", "interactions")


@dataclass(frozen=True, slots=True)
class FittedLog:
    """A log with the recommender that was made for it."""

    dataset: PreparedDataset
    state: State
    """What was tried and chosen."""
    answer: Answer
    page: Path
    seconds: float
    """What all of it took."""


def fit_log(
    source: TableSource,
    plan: Plan,
    time_limit: str | float | None = None,
    *,
    items: TableSource | None = None,
    users: TableSource | None = None,
    config: DataConfig | None = None,
    command: str = "",
    started: float | None = None,
    **words: Unpack[LogWords],
) -> FittedLog:
    """Make the best recommender for a log that the time allows.

    The prepared dataset goes to ``data/NAME``, or to ``data/NAME-prepared`` or ``NAME-prepared`` if
    the log itself is there; the results go to ``runs/NAME``.

    Args:
        source: see `prepare`.
        plan: name, preset, seed and store.
        time_limit: seconds, or text such as ``30m``; that of the preset if None.
        items: see `prepare`.
        users: see `prepare`.
        config: further settings of the data.
        command: the command that makes the page again.
        started: when the time began to pass, by `time.monotonic`; now if None.
        **words: see `prepare`.

    Raises:
        InputError: the log, a setting or the store is invalid.
    """
    # From the start: the seconds pass while libraries are loaded and a store is made, too.
    started = time.monotonic() if started is None else started
    if plan.preset not in TIME_LIMITS:
        raise InputError(f"preset {plan.preset!r}: must be one of {', '.join(TIME_LIMITS)}")
    parse_experiment({"name": plan.name, "seed": plan.seed}, (), "the run")  # refuses odd names
    limit = TIME_LIMITS[plan.preset] if time_limit is None else parse_time_limit(time_limit)
    clock = Clock(limit, started=started)
    if isinstance(source, str | os.PathLike):
        find_named_dataset(os.fspath(source))  # refuses what is not there at once
    check_out(plan.out)  # before a dataset of that name is replaced
    phases, name = Phases(), plan.name
    with phases.timed("preparation"), shown() as view, stage(f"{name}: reading", progress=view):
        dataset, choices = _prepare(source, name, with_words(config, words), items, users)
        open_store(plan.tracking)  # a store that is not there should not be found out in an hour
    with sole_use(plan.out, "runs it"), shown() as view:
        show = _Show(view, name, clock)
        state = run_automatically(dataset, plan, clock, choices, view, show, phases)
        show("writing the page")
        with phases.timed("page"):
            page = write_page(state, dataset, plan.out, without_password(command), clock)
        state.remove()  # not before: a run that is killed here resumes
    logger.debug("time: %s", phases)
    return FittedLog(dataset, state, state.chosen_answer, page, clock.spent)


def run_automatically(
    dataset: PreparedDataset,
    plan: Plan,
    clock: Clock,
    choices: list[Choice] | None = None,
    progress: Progress | None = None,
    announce: Callable[[str], None] = lambda _: None,
    phases: Phases | None = None,
) -> State:
    """Choose settings for a log on its validation part, train, test once, and log everything.

    Ctrl-C ends the training, and the best so far is tested and kept; while that or baselines are
    tested, it leaves out the other baselines. A run that was killed resumes when it is started
    again, with the time that was left; the caller removes its state when the page is written.

    Args:
        dataset: the prepared dataset.
        plan: name, preset, seed and store.
        clock: the time limit; it is kept but for the last epoch.
        choices: settings of the data that were chosen for the log, with their reasons.
        progress: a progress display that is shown already; a new one for each training if None.
        announce: called with one line about what is tried next.
        phases: where the time went before; what the run takes is added.

    Raises:
        InputError: nothing is held out to choose or to test on, or there is nothing to train on.
    """
    course, kinds = _plan(dataset, plan, clock, choices or [], announce)
    course.progress, course.announce = progress, announce
    course.phases = phases or course.phases
    state, protocol = course.state, kinds[0].experiment
    if state.answer is None:
        finished, why = kept(course), ""
        if finished is None:
            finished, why = _train(course, kinds)
        else:
            logger.info("resuming after the training")
        if finished is not None and finished.trained.averaging is not None:
            state.choices.append(finished.trained.averaging)
        with answering(course):
            settings = answer(course, finished, protocol, why)
            _write_settings(course, settings)
            state.trained = None if finished is None else finished.trained
            state.stopped = clock.stopped
            state.write(clock.spent)
    else:
        logger.info("resuming after the test of the answer")
    with course.phases.timed("baselines"):
        evaluate_baselines(course, protocol)
    return state


def _plan(
    dataset: PreparedDataset,
    plan: Plan,
    clock: Clock,
    choices: list[Choice],
    announce: Callable[[str], None],
) -> tuple[Course, list[Kind]]:
    """Read the facts, find an interrupted run, and fit settings and samples to the time."""
    facts = LogFacts.of(dataset)
    kinds = propose(facts, choose_shared(facts), dataset.config, plan)
    protocol = kinds[0].experiment
    encoders = Encoders.fit(protocol.model, dataset)  # all kinds read the same features
    dataset = encoders.read(dataset)
    catalogue = Catalogue.read(dataset.num_items, encoders, dataset.item_table)
    trees = {kind.name: kind.experiment.model_dump(mode="json") for kind in kinds}
    known = {"dataset": dataset.fingerprint} | trees
    state = State.open(plan.out, known, fresh=plan.fresh)
    clock.before = state.seconds
    held_out = HeldOutParts.find(dataset, protocol.evaluation.request_time)
    if state.speed is None:
        announce("measuring how fast a model is")
        costs = [(kind.cost, kind.experiment) for kind in kinds]
        state.speed = measure(costs, dataset, catalogue, held_out.valid)
    state.sizes = state.sizes or state.speed.sample_sizes(clock.limit)
    shared = choose_shared(facts, state.speed, clock.limit)
    if state.answer is None:
        state.choices = [*choices, *shared, *choose_features(facts)]
    logger.debug("machine: %s", describe_machine())
    for choice in state.choices:
        logger.debug("%s: %s (%s)", choice.setting, choice.value, choice.reason)
    for finding in warnings_in(audit(dataset, protocol.evaluation.seen)):  # worth knowing before
        logger.info("audit: %s: %s %s", finding.name, f"{finding.count:,}", finding.sentence)
    samples = sampled(held_out, state.sizes, plan.seed)
    course = Course(plan, dataset, catalogue, samples, state.speed, clock, state)
    course.averages = plan.averages and not facts.features  # models with features have no mean
    return course, propose(facts, shared, dataset.config, plan)


def _train(course: Course, kinds: list[Kind]) -> tuple[Finished | None, str]:
    """Tune baselines, race and refit models; return the model, or why there is none."""
    state, clock, phases = course.state, course.clock, course.phases
    protocol = kinds[0].experiment
    try:
        with phases.timed("baselines"):
            tune_baselines(course, protocol)
    except KeyboardInterrupt:
        if not state.baselines:
            raise
        clock.stopped = True
        return _no_model(course, "Ctrl-C stopped the run before a model was trained")
    try:
        racers = [Racer.ready(kind, course) for kind in kinds]
        state.add(*racers)
        with phases.timed("training"):
            finished = train_models(course, racers)
    except InputError as error:
        if not state.baselines:
            raise
        logger.warning("no model can be trained: %s", error)
        tell_outcomes(course)
        return None, "no model could be trained"
    if finished is None:
        return _no_model(course, "Ctrl-C stopped the run before a model was validated")
    validating = sum(racer.seconds_validating for racer in racers)
    phases.add("training", clock.before - validating)  # with what an interrupted run took
    phases.add("validation", validating)
    keep(course, finished)
    return finished, ""


def train_models(course: Course, racers: list[Racer]) -> Finished | None:
    """Race, train on and refit; at Ctrl-C the best so far is the model, None before a validation.

    Raises:
        InputError: no model can be trained.
        KeyboardInterrupt: Ctrl-C, and there is no baseline either.
    """
    try:
        ranked = race(course, racers)
        course.state.add(*ranked)
        return finish(course, train_on(course, ranked))
    except KeyboardInterrupt:
        course.clock.stopped = True
    trained = [racer for racer in racers if racer.best is not None]
    if not trained and not course.state.baselines:
        raise KeyboardInterrupt
    return finish(course, trained) if trained else None


def _no_model(course: Course, why: str) -> tuple[None, str]:
    logger.warning("%s: the best baseline is used", why)
    course.state.racers = []
    return None, why


def _write_settings(course: Course, settings: Experiment) -> None:
    """Write the settings of the answer, and how to train with them."""
    plan, path = course.plan, course.plan.out / artifacts.SETTINGS
    data = str(course.dataset.path)
    again = shlex.join(
        ["recsys", "train", str(path), "--data", data, "--set", f"name={plan.name}-again"]
    )
    said = course.state.chosen_answer.sentence
    with new_file(path) as file:
        file.write_text(f"# {said}\n# {again}\n{dump_experiment(settings)}", encoding="utf-8")


def _prepare(
    source: TableSource,
    name: str,
    settings: DataConfig,
    items: TableSource | None,
    users: TableSource | None,
) -> tuple[PreparedDataset, list[Choice]]:
    """Prepare the log, and say what came of it.

    Returns:
        The dataset, and what was chosen and is not the default: the split, to drop copies.
    """
    out = _prepared_folder(name, source)
    choose = None if "split" in settings.model_fields_set else choose_split
    source, choices = held(source), list[Choice]()
    write_dataset(source, settings, out, items, users, choose_split=choose)
    dataset = PreparedDataset.open(out)
    copies, rows = dataset.copies[0], len(dataset.items)
    if 2 * copies > rows and "duplicates" not in settings.model_fields_set:
        reason = f"{copies:,} of {rows:,} interactions equal another one in user, item and time"
        choices.append(Choice("data.duplicates", "drop_exact", reason))
        settings = settings.model_copy(update={"duplicates": "drop_exact"})
        write_dataset(source, settings, out, items, users, choose_split=choose)
        dataset = PreparedDataset.open(out)
    manifest, split = dataset.manifest, dataset.config.split
    counts = ", ".join(f"{manifest.counts[counted]:,} {counted}" for counted in _COUNTED)
    dropped = "".join(f", {n:,} dropped ({why})" for why, n in manifest.dropped.items() if n)
    logger.info("%s: %s in %s%s", name, counts, dataset.path, dropped)
    if split != settings.split:
        choices.append(explained(split, dataset.offsets))
    return dataset, choices


def _prepared_folder(name: str, source: TableSource) -> Path:
    """Return where the prepared log goes, which is not where the log is."""
    folder = Path("data") / name
    if not isinstance(source, str | os.PathLike):
        return folder
    fixed = takewhile(lambda part: not set("*?[") & set(part), Path(source).parts)
    log, prepared = Path(*fixed).resolve(), folder.resolve()
    if log.is_relative_to(prepared):
        return folder.with_name(f"{name}-prepared")
    return Path(f"{name}-prepared") if prepared.is_relative_to(log) else folder


class _Show:
    """Shows the time left of the whole run, and what is tried.

    Args:
        progress: the view.
        name: of the run.
        clock: the time.
    """

    def __init__(self, progress: Progress, name: str, clock: Clock) -> None:
        self._progress, self._name, self._clock = progress, name, clock
        self._task = progress.add_task(name, total=clock.limit, status="")

    def __call__(self, what: str) -> None:
        """Show what is tried from now on."""
        left = self._clock.left
        if self._progress.disable:  # there is no terminal
            time = f"{timedelta(seconds=round(abs(left)))} {'over' if left < 0 else 'left'}"
            logger.debug("%s: %s; %s", self._name, what, time)
        ends, spent = self._progress.get_time() + left, self._clock.spent
        self._progress.update(self._task, completed=spent, ends=ends, status=what, at_least=False)


def name_of(source: TableSource) -> str:
    """Return a name for the run of a source, such as that of its file."""
    if not isinstance(source, str | os.PathLike):
        return "recommender"
    return re.sub(r"[^\w.-]+", "-", source_name(str(source))).strip("-.") or "recommender"
