"""The report of an automatic run: one page with the log, the race, the figures and some users."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from recsys.folders.atomic import new_file
from recsys.reports.answer import Answer
from recsys.reports.charts import (
    MUTED,
    Chart,
    Line,
    add_lines,
    chart,
    new_axes,
    styles_by_merit,
)
from recsys.reports.comparison_charts import (
    Curves,
    draw_curves,
    draw_differences,
    draw_intervals,
    draw_segments,
    drawn,
)
from recsys.reports.comparison_page import audit_rows, every_number
from recsys.reports.examples import UserExample
from recsys.reports.log_summary import LogSummary, log_charts
from recsys.reports.pages import Cell, render
from recsys.reports.tables import TESTS, Comparison, decimals

_KINDS = ("history", "popularity_decile")
"""The kinds of users and items whose figures are shown."""


class RacePoint(NamedTuple):
    """One measurement of a racer."""

    seconds: float
    """Since the start of the race."""
    epochs: int
    """The epochs it had trained by then; 0 for counts."""
    ndcg: float
    """NDCG@10 on the validation targets."""


@dataclass(frozen=True, slots=True)
class Racer:
    """One model of the race."""

    name: str
    description: str
    """What it is, in words or settings."""
    points: tuple[RacePoint, ...]
    """Its measurements in the order of time; none if it could not be trained."""
    outcome: str
    """What became of it: won, dropped after 4 epochs, stopped early …"""
    won: bool = False

    @property
    def best(self) -> float | None:
        """Its best NDCG@10 on validation; None if it was never measured."""
        return max((point.ndcg for point in self.points), default=None)


@dataclass(frozen=True, slots=True)
class TunedBaseline:
    """A baseline that the racers are measured against."""

    name: str
    settings: str
    """Those that were chosen, in words; empty if it has none."""
    ndcg: float
    """NDCG@10 on the validation targets."""
    seconds: float
    """What choosing them took."""


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
    racers: tuple[Racer, ...] = ()
    """The race, in any order."""
    baselines: tuple[TunedBaseline, ...] = ()
    """What they reach on validation, best first."""
    curves: Curves = field(default_factory=dict)
    """Of the trained runs, by run id; see `recsys.tracking.runs.learning_curves`."""
    examples: tuple[UserExample, ...] = ()
    """See `recsys.reports.examples.examples_of`."""
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
    comparison, log = report.comparison, report.log
    answer, racers = Answer.of(comparison, report.answer), by_outcome(report.racers)
    styles = styles_by_merit(len(racers))
    findings = sorted(log.findings, key=lambda finding: finding.severity != "warn")
    baselines, items = report.baselines, [i for user in report.examples for i in user.recommended]
    return render(
        "run.html",
        title=f"{report.name}: report",
        report=report,
        headline=answer.headline,
        sentence=answer.sentence(comparison.targets),
        first=drawn(draw_intervals(comparison), draw_differences(comparison)),
        kinds=draw_segments(comparison, _KINDS),
        numbers=every_number(comparison),
        tried=drawn(
            draw_race(racers, next(iter(baselines), None)), draw_curves(comparison, report.curves)
        ),
        race=[
            [
                Cell(racer.name, [racer.description], style.key, "chosen" if racer.won else ""),
                "" if racer.best is None else decimals(racer.best),
                f"{racer.points[-1].epochs:g}" if racer.points else "",
                f"{racer.points[-1].seconds:,.0f}" if racer.points else "",
                racer.outcome,
            ]
            for racer, style in zip(racers, styles, strict=True)
        ],
        baselines=[[b.name, b.settings, decimals(b.ndcg), f"{b.seconds:,.1f}"] for b in baselines],
        choices=[[choice.setting, choice.value, choice.reason] for choice in report.choices],
        log_facts={
            "users": f"{log.users:,}",
            "items": f"{log.items:,}",
            "interactions": f"{log.interactions:,}",
            "of them repeats": f"{log.repeats:.0%}",
        },
        log_charts=log_charts(log),
        findings=audit_rows([finding for finding in findings if finding.count]),
        not_found=[finding.name for finding in log.findings if not finding.count],
        explained=any(item.reasons for item in items),
        hits=sum(user.rank is not None for user in report.examples),
        about=_about(report),
    )


def by_outcome(racers: Sequence[Racer]) -> list[Racer]:
    """Return the winners, then the others, each by their best NDCG@10."""
    return sorted(racers, key=lambda racer: (not racer.won, -(racer.best or 0.0)))


def draw_race(racers: Sequence[Racer], baseline: TunedBaseline | None = None) -> Chart | None:
    """Draw NDCG@10 on validation over time, one line per racer; None without measurements.

    The line of a racer that did not win ends with a cross.

    Args:
        racers: in the order of the table.
        baseline: a broken line shows what it reaches.
    """
    if not any(racer.points for racer in racers):
        return None
    minutes = max(racer.points[-1].seconds for racer in racers if racer.points) > 180
    unit = "minutes" if minutes else "seconds"
    axes = new_axes(f"{unit} since the start", "NDCG@10 on validation")
    lines, numbers = [], []
    for racer, style in zip(racers, styles_by_merit(len(racers)), strict=True):
        times = [point.seconds / (60 if minutes else 1) for point in racer.points]
        values = [point.ndcg for point in racer.points]
        lines += [Line(racer.name, times, values, style, strong=racer.won)] * bool(times)
        if times and not racer.won:
            cross: Any = {"marker": "x", "markersize": 9, "markeredgewidth": 2, "zorder": 50}
            axes.plot(times[-1:], values[-1:], color=style.colour, **cross)
        for point in racer.points:
            epoch = f", epoch {point.epochs:g}" if point.epochs else ""
            numbers.append((racer.name, f"{point.seconds:,.0f} s{epoch}", decimals(point.ndcg)))
    add_lines(axes, lines)
    axes.set_xlim(left=0)
    caption = "NDCG@10 on the validation targets, over time. A line that ends with a cross was "
    caption += "followed no further. "
    if baseline is not None:
        axes.axhline(baseline.ndcg, color=MUTED[0], linestyle=(0, (4, 3)), linewidth=1)
        caption += f"The broken line is the best baseline, {baseline.name}. "
    caption += "The test targets had no part in it."
    head = ("model", "measured at", "NDCG@10 on validation")
    return chart(axes, "race", "The race", caption, head, numbers)


def _about(report: RunReport) -> Mapping[str, str]:
    comparison, log = report.comparison, report.log
    dropped = ", ".join(f"{count:,} ({reason})" for reason, count in log.dropped.items())
    about = {
        "log": log.name,
        "rows": f"{log.rows:,} read, dropped: {dropped or 'none'}",
        "interactions": ", ".join(f"{count:,} {part}" for part, count in log.parts.items()),
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
