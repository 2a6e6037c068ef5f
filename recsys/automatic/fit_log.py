"""From a log to a recommender: prepare, choose, train, test, and write the page."""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Unpack

from rich.progress import Progress

from recsys.automatic.budget import Budget, parse_time_limit
from recsys.automatic.candidates import Plan, Preset
from recsys.automatic.journal import Journal
from recsys.automatic.page import write_page
from recsys.automatic.result import AutomaticRun
from recsys.automatic.run import run_automatically
from recsys.automatic.split_choice import choose_split, explained
from recsys.config import DataConfig, parse_experiment
from recsys.data.preparation import held, write_dataset
from recsys.data.prepared import PreparedDataset
from recsys.data.settings import LogWords, completed
from recsys.data.source_files import source_name
from recsys.data.sources import find_named_dataset
from recsys.data.tables import TableSource
from recsys.errors import InputError
from recsys.experiments.results import Phases, check_out
from recsys.folders.locks import sole_use
from recsys.progress import shown, stage
from recsys.reports.run_page import Choice
from recsys.tracking.links import without_password
from recsys.tracking.store import open_store

logger = logging.getLogger(__name__)

TIME_LIMITS: dict[Preset, float] = {"fast": 300.0, "balanced": 900.0, "best": 3600.0}
"""Seconds of each preset if no limit is given."""
_COUNTED = ("users", "items", "interactions")


@dataclass(frozen=True, slots=True)
class FittedLog:
    """A log with the recommender that was made for it."""

    dataset: PreparedDataset
    automatic: AutomaticRun
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
    budget = Budget(_seconds(plan, time_limit), started=started)
    if isinstance(source, str | os.PathLike):
        find_named_dataset(os.fspath(source))  # refuses what is not there at once
    check_out(plan.out)  # before a dataset of that name is replaced
    phases, name = Phases(), plan.name
    with phases.timed("preparation"), shown() as view, stage(f"{name}: reading", progress=view):
        dataset, chosen = _prepare(source, name, completed(config, words), items, users)
        open_store(plan.tracking)  # a store that is not there should not be found out in an hour
    with sole_use(plan.out, "runs it"), shown() as view:
        show = _Show(view, name, budget)
        automatic = run_automatically(
            dataset, plan, budget, chosen, progress=view, announce=show, phases=phases
        )
        show("writing the page")
        shown_command = without_password(command)
        with phases.timed("page"):
            page = write_page(automatic, dataset, plan.out, shown_command, budget)
        Journal.beside(plan.out, {}).remove()  # not before: a run that is killed here resumes
    logger.debug("time: %s", phases)
    return FittedLog(dataset, automatic, page, budget.spent)


def _seconds(plan: Plan, time_limit: str | float | None) -> float:
    """Return the time limit, by default that of the preset.

    Raises:
        InputError: it is none, or the preset or the name is invalid.
    """
    if plan.preset not in TIME_LIMITS:
        raise InputError(f"preset {plan.preset!r}: must be one of {', '.join(TIME_LIMITS)}")
    parse_experiment({"name": plan.name, "seed": plan.seed}, (), "the run")  # refuses odd names
    return TIME_LIMITS[plan.preset] if time_limit is None else parse_time_limit(time_limit)


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
    counts = ", ".join(f"{manifest.counts[each]:,} {each}" for each in _COUNTED)
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
    log, place = Path(*fixed).resolve(), folder.resolve()
    if log.is_relative_to(place):
        return folder.with_name(f"{name}-prepared")
    return Path(f"{name}-prepared") if place.is_relative_to(log) else folder


class _Show:
    """Shows the time left of the whole run, and what is tried.

    Args:
        progress: the view.
        name: of the run.
        budget: the time.
    """

    def __init__(self, progress: Progress, name: str, budget: Budget) -> None:
        self._progress = progress
        self._name = name
        self._budget = budget
        self._task = progress.add_task(name, total=budget.limit, status="")

    def __call__(self, what: str) -> None:
        """Show what is tried from now on."""
        left = self._budget.left
        if self._progress.disable:  # there is no terminal
            time = f"{timedelta(seconds=round(abs(left)))} {'over' if left < 0 else 'left'}"
            logger.debug("%s: %s; %s", self._name, what, time)
        ends = self._progress.get_time() + left
        self._progress.update(
            self._task, completed=self._budget.spent, ends=ends, status=what, at_least=False
        )


def name_of(source: TableSource) -> str:
    """Return a name for the run of a source, such as that of its file."""
    if not isinstance(source, str | os.PathLike):
        return "recommender"
    return re.sub(r"[^\w.-]+", "-", source_name(str(source))).strip("-.") or "recommender"
