"""From a log to a recommender: prepare, tune baselines, race, refit, test, and write the page."""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Unpack

from rich.progress import Progress

from recsys.automatic.answer import (
    Answer,
    answer_with_baseline,
    answer_with_model,
    evaluate_baselines,
    write_page,
)
from recsys.automatic.clock import Clock, measure, parse_time_limit
from recsys.automatic.facts import LogFacts, choose_split, explained
from recsys.automatic.race import Finished, finish, race, tell_outcomes, train_on, tune_baselines
from recsys.automatic.racer import Context, Racer
from recsys.automatic.rules import TIME_LIMITS, Kind, Plan, choose_settings, propose
from recsys.automatic.state import State
from recsys.config import DataConfig, dump_experiment, parse_experiment
from recsys.data.features import Encoders
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
from recsys.training.checkpoints import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FittedLog:
    """A log with the recommender that was made for it."""

    dataset: PreparedDataset
    state: State
    choices: list[Choice]
    """The settings that follow from the log, with their reasons."""
    answer: Answer
    other_runs: list[str]
    """The MLflow runs beside the answer: of the model that it beat, and of baselines."""
    page: Path
    seconds: float


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
    """Make the best recommender for a log that the time allows; see `recsys.fit`.

    The prepared dataset goes to ``data/NAME``, or to ``data/NAME-prepared`` or ``NAME-prepared`` if
    the log itself is there; the results go to ``runs/NAME``. Ctrl-C ends the training: the best so
    far is tested and kept. A run that was ended in another way resumes when it is started again.

    ``config`` has further settings of the data, ``command`` makes the page again, and the time
    begins to pass at ``started``, by `time.monotonic`; now if None.

    Raises:
        InputError: the log, a setting or the store is invalid; nothing is held out to choose or to
            test on, or there is nothing to train on.
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
        show, command = show_steps(view, name, clock), without_password(command)
        fitted = run_automatically(dataset, plan, clock, choices, view, show, phases, command)
    logger.debug("time: %s", phases)
    return fitted


def run_automatically(
    dataset: PreparedDataset,
    plan: Plan,
    clock: Clock,
    choices: list[Choice],
    progress: Progress | None = None,
    announce: Callable[[str], None] = lambda _: None,
    phases: Phases | None = None,
    command: str = "",
) -> FittedLog:
    """Choose settings for a prepared log, train, test once, and write the page; see `fit_log`."""
    facts = LogFacts.of(dataset)
    settings = choose_settings(facts)
    kinds = propose(facts, settings, dataset.config, plan)
    protocol, choices = kinds[0].experiment, [*choices, *settings]
    for choice in choices:
        logger.debug("%s: %s (%s)", *choice)
    encoders = Encoders.fit(protocol.model, dataset)  # all kinds read the same features
    dataset = encoders.read(dataset)
    catalogue = Catalogue.read(dataset.num_items, encoders, dataset.item_table)
    trees = {kind.name: kind.experiment.model_dump(mode="json") for kind in kinds}
    state = State.open(plan.out, {"dataset": dataset.fingerprint} | trees, fresh=plan.fresh)
    clock.before = state.seconds
    held_out = HeldOutParts.find(dataset, protocol.evaluation.request_time)
    if state.speed is None:
        announce("measuring how fast a model is")
        cheapest = min(kinds, key=lambda kind: kind.cost)
        words = cheapest.experiment, cheapest.cost, dataset, catalogue, held_out.valid
        state.speed = measure(*words)
    samples = state.speed.sample(held_out, clock.limit, plan.seed)
    context = Context(plan, dataset, catalogue, samples, state.speed, clock, state)
    context.averages = plan.preset != "fast" and not facts.features  # no mean reads features
    context.phases, context.progress = phases or context.phases, progress
    context.announce = announce
    finished, reason = train_models(context, kinds)
    context.say("testing")
    if finished is None:
        tell_outcomes(context)
        answer = answer_with_baseline(context, state.baselines[0], protocol, reason)
    else:
        choices += [finished.averaging] if finished.averaging else []
        answer = answer_with_model(context, finished, protocol)
    again = ["recsys", "train", str(plan.out / artifacts.SETTINGS), "--data", str(dataset.path)]
    again = [*again, "--set", f"name={plan.name}-again"]
    text = f"# {answer.sentence}\n# {shlex.join(again)}\n{dump_experiment(answer.experiment)}"
    with new_file(plan.out / artifacts.SETTINGS) as file:
        file.write_text(text, encoding="utf-8")
    with context.phases.timed("baselines"):
        runs = evaluate_baselines(context, answer, protocol)
    runs = [answer.beaten, *runs] if answer.beaten else runs
    context.say("writing the page")
    with context.phases.timed("page"):
        page = write_page(context, finished, answer, runs, choices, command)
    state.remove()  # not before: a run that is killed here resumes
    return FittedLog(dataset, state, choices, answer, runs, page, clock.spent)


def train_models(context: Context, kinds: list[Kind]) -> tuple[Finished | None, str]:
    """Tune baselines, race, train on and refit; at Ctrl-C the best so far is the model.

    Returns:
        The model, or why there is none, but baselines.

    Raises:
        InputError: no model can be trained, and there is no baseline; or the disk is full.
        KeyboardInterrupt: Ctrl-C, and there is no baseline either.
    """
    state, phases, racers = context.state, context.phases, list[Racer]()
    try:
        with phases.timed("baselines"):
            tune_baselines(context, kinds[0].experiment)
        with phases.timed("training"):
            racers += [Racer.ready(kind, context) for kind in kinds]
            state.add(*racers)
            return finish(context, train_on(context, race(context, racers))), ""
    except KeyboardInterrupt:
        context.clock.stopped = True
    except CheckpointError:  # the disk is full: another answer could not be written either
        raise
    except InputError as error:
        if not state.baselines:
            raise
        logger.warning("no model could be trained: %s", error)
        return None, "no model could be trained"
    logger.warning("Ctrl-C: the best so far is tested; Ctrl-C again ends the run")
    trained = sorted((racer for racer in racers if racer.points), key=lambda racer: -racer.quality)
    if trained:
        return finish(context, trained), ""
    if not state.baselines:
        raise KeyboardInterrupt
    return None, "Ctrl-C came before a model was validated"


# --- The log -------------------------------------------------------------------------------------


def _prepare(
    source: TableSource,
    name: str,
    settings: DataConfig,
    items: TableSource | None,
    users: TableSource | None,
) -> tuple[PreparedDataset, list[Choice]]:
    """Prepare the log; return it with what was chosen: the split, to drop copies."""
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
    names = ("users", "items", "interactions")
    counts = ", ".join(f"{manifest.counts[counted]:,} {counted}" for counted in names)
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


def name_of(source: TableSource) -> str:
    """Return a name for the run of a source, such as that of its file."""
    if not isinstance(source, str | os.PathLike):
        return "recommender"
    return re.sub(r"[^\w.-]+", "-", source_name(str(source))).strip("-.") or "recommender"


def show_steps(progress: Progress, name: str, clock: Clock) -> Callable[[str], None]:
    """Return what shows the time left of the whole run, and what is tried."""
    task = progress.add_task(name, total=clock.limit, status="")

    def show(what: str) -> None:
        logger.debug("%s: %s; %.0f s left", name, what, clock.left)
        ends, spent = progress.get_time() + clock.left, clock.spent
        progress.update(task, completed=spent, ends=ends, status=what)

    return show
