"""The report of an automatic run: one page with the log, the race, the figures and some users."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from recsys.comparison.figures import Curves, draw_curves, draw_differences, draw_intervals
from recsys.comparison.formats import TESTS, decimals
from recsys.comparison.page_table import page_table
from recsys.comparison.segment_figures import draw_segments
from recsys.comparison.table import Comparison
from recsys.drawing.marks import Style, key
from recsys.drawing.page import render
from recsys.drawing.picture import Picture
from recsys.drawing.svg import markup
from recsys.folders.atomic import new_file
from recsys.report.answer import Answer, sentence
from recsys.report.examples import UserExample
from recsys.report.log_pictures import log_pictures
from recsys.report.log_summary import LogSummary
from recsys.report.race import Heat, TunedBaseline, draw_race, ranked_heats

_KINDS = ("history", "popularity_decile")
"""The kinds of users and items whose figures are shown."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting that was chosen, and why."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True, eq=False)
class RunReport:
    """Everything that the page of an automatic run shows."""

    name: str
    """The name of the run."""
    log: LogSummary
    comparison: Comparison
    """The model and the baselines, on the test targets; the first is the reference of the tests."""
    command: str
    """The command that makes the run again."""
    date: datetime
    seconds: float
    """How long all of it took."""
    answer: str | None = None
    """The id of the run that is the answer; the best of the comparison if None."""
    choices: tuple[Choice, ...] = ()
    heats: tuple[Heat, ...] = ()
    """The race, in any order."""
    baselines: tuple[TunedBaseline, ...] = ()
    """What they reach on validation, best first."""
    curves: Curves = field(default_factory=dict)
    """Of the trained runs, by run id; see `recsys.tracking.runs.learning_curves`."""
    examples: tuple[UserExample, ...] = ()
    """See `recsys.report.examples.examples_of`."""
    next_steps: tuple[str, ...] = ()
    """What to try next, in sentences."""
    peak_memory_mib: float | None = None
    """None if it was not measured."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions and the machine, by name."""


def write_run_report(path: str | os.PathLike[str], report: RunReport) -> Path:
    """Write the page as one HTML file, atomically; it needs no other file and no network.

    An existing file is replaced. The same report gives the same bytes.

    Returns:
        The path.

    Raises:
        InputError: the file cannot be written, or the answer is not in the comparison.
    """
    path = Path(path)
    page = run_page(report)
    with new_file(path) as file:
        file.write_text(page, encoding="utf-8")
    return path


def run_page(report: RunReport) -> str:
    """Return the page as HTML; see `write_run_report`."""
    comparison, answer = report.comparison, Answer.of(report.comparison, report.answer)
    return render(
        "report/run_page.html",
        title=f"{report.name}: report",
        name=report.name,
        answer=answer,
        mean=decimals(answer.run.interval.mean),
        sentence=sentence(answer, comparison.targets),
        first=_drawn(draw_intervals(comparison), draw_differences(comparison)),
        table=page_table(comparison),
        kinds=draw_segments(comparison, _KINDS),
        race=_drawn(draw_race(report.heats, next(iter(report.baselines), None))),
        heats=[_heat(*ranked) for ranked in ranked_heats(report.heats)],
        baselines=[
            {
                "name": one.name,
                "settings": one.settings,
                "ndcg": decimals(one.ndcg),
                "seconds": f"{one.seconds:,.1f}",
            }
            for one in report.baselines
        ],
        choices=report.choices,
        curves=_drawn(draw_curves(comparison, report.curves)),
        log=report.log,
        log_facts=_log_facts(report.log),
        log_pictures=log_pictures(report.log),
        found=sorted(
            (each for each in report.log.findings if each.count),
            key=lambda each: each.severity != "warn",
        ),
        not_found=[each.name for each in report.log.findings if not each.count],
        examples=report.examples,
        explained=any(item.reasons for user in report.examples for item in user.recommended),
        hits=sum(user.rank is not None for user in report.examples),
        next_steps=report.next_steps,
        command=report.command,
        about=_about(report),
    )


def _drawn(*pictures: Picture | None) -> list[Picture]:
    return [picture for picture in pictures if picture is not None]


def _heat(heat: Heat, style: Style) -> Mapping[str, object]:
    return {
        "candidate": heat.candidate,
        "description": heat.description,
        "outcome": heat.outcome,
        "won": heat.won,
        "key": markup(key(style)),
        "best": "" if heat.best is None else decimals(heat.best),
        "epochs": f"{heat.points[-1].epochs:g}" if heat.points else "",
        "seconds": f"{heat.points[-1].seconds:,.0f}" if heat.points else "",
    }


def _log_facts(log: LogSummary) -> list[tuple[str, str]]:
    facts = [("users", log.users), ("items", log.items), ("interactions", log.interactions)]
    shown = [(name, f"{count:,}") for name, count in facts]
    return [*shown, ("of them repeats", f"{log.repeats:.0%}")]


def _about(report: RunReport) -> Mapping[str, str]:
    comparison, log = report.comparison, report.log
    dropped = ", ".join(f"{count:,} ({reason})" for reason, count in log.dropped.items())
    parts = ", ".join(f"{count:,} {part}" for part, count in log.parts.items())
    about = {
        "log": log.name,
        "rows": f"{log.rows:,} read, dropped: {dropped or 'none'}",
        "interactions": parts,
        "protocol": comparison.protocol,
        "evaluated on": f"{comparison.targets:,} targets of {comparison.users:,} users",
        "intervals": "95%, percentile bootstrap over users",
        "tests": f"{TESTS[comparison.method]} over users, Holm-corrected",
        "made": f"{report.date:%Y-%m-%d %H:%M %Z}".rstrip(),
        "took": duration(report.seconds),
    }
    if report.peak_memory_mib is not None:
        about["peak memory"] = f"{report.peak_memory_mib:,.0f} MiB"
    return about | dict(report.versions)


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> duration(42.4), duration(754), duration(7265)
    ('42 s', '12 min 34 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
