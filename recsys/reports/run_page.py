"""The report of an automatic run: one page with the log, the race, the figures and some users."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.baselines.tuned import BASELINES
from recsys.data.audit import Finding
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.drawing.axes import value_axis
from recsys.drawing.bars import Bar, draw_bars
from recsys.drawing.lines import Line, draw_lines
from recsys.drawing.marks import BEST, Style, key, styles_by_merit
from recsys.drawing.page import render
from recsys.drawing.picture import FULL, HALF, Picture, draw
from recsys.drawing.svg import markup
from recsys.drawing.values import Values, bar_values, line_values
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable
from recsys.folders.atomic import new_file
from recsys.reports.comparison_page import (
    Curves,
    RankedRun,
    by_merit,
    draw_curves,
    draw_differences,
    draw_intervals,
    draw_segments,
    headline,
    page_table,
)
from recsys.reports.examples import UserExample
from recsys.reports.statistics import ALPHA, PairedResult, holm
from recsys.reports.tables import TESTS, Comparison, decimals, heading, with_interval
from recsys.tracking.artifacts import ANSWER

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
    comparison, answer = report.comparison, Answer.of(report.comparison, report.answer)
    return render(
        "reports/templates/run.html",
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


@dataclass(frozen=True, slots=True)
class Answer:
    """The run that is the answer, beside its strongest rival."""

    run: RankedRun
    metric: str
    """The metric that runs are compared in, NDCG@10 unless the comparison lacks it."""
    is_baseline: bool
    rival: RankedRun | None
    """The best baseline or, if the answer is one, the best trained model; None without one."""
    difference: PairedResult | None
    """The answer minus its rival, p-values Holm-corrected for all other runs, as those of the
    table; None if the two have other targets, or if there is no rival."""

    @classmethod
    def of(cls, comparison: Comparison, run_id: str | None = None) -> Answer:
        """Compare the answer with its rivals.

        Args:
            comparison: the answer, and baselines or models to compare it with.
            run_id: the id of the answer; the best of the comparison if None.

        Raises:
            InputError: the comparison has no such run.
        """
        runs = by_merit(comparison)
        found = [
            run
            for run in runs
            if run_id is None or (run.row.run_id == run_id and not run.model.first.model_alone)
        ]
        if not found:
            raise InputError(f"run {run_id}: is not in the comparison")
        answer, metric = found[0], headline(comparison)
        is_baseline = _is_baseline(answer)
        rivals = [
            run
            for run in runs
            if _is_baseline(run) != is_baseline and not run.model.first.model_alone
        ]
        same = [run for run in rivals if run.model.first.shares_targets(answer.model.first)]
        if not same:
            return cls(answer, metric, is_baseline, rivals[0] if rivals else None, None)
        others = [
            run
            for run in runs
            if run is not answer and run.model.first.shares_targets(answer.model.first)
        ]
        # Drawn as the tests of the table, each run against the answer: the p-values are the same.
        tests = [
            run.model.test(answer.model, metric, method=comparison.method, across_protocols=True)
            for run in others
        ]
        place = others.index(same[0])
        p_value = holm([each.p_value for each in tests])[place]
        difference = tests[place]._replace(p_value=p_value).of_b_against_a
        return cls(answer, metric, is_baseline, same[0], difference)

    @property
    def figure(self) -> str:
        """The metric of the answer with its interval."""
        return f"{heading(self.metric)} {with_interval(self.run.interval)}"

    @property
    def verdict(self) -> str:
        """How the answer compares with its rival; empty without one."""
        if self.rival is None:
            return ""
        kind = "trained model" if self.is_baseline else "baseline"
        than = f"the best {kind}, {self.rival.label}"
        if self.difference is None:
            return f"on other targets than {than}, so that the two cannot be compared"
        change, p = _change(self.difference.difference, self.rival.interval.mean), self.p_value
        if self.difference.p_value >= ALPHA:
            return f"{change} against {than}, which may be chance ({p})"
        if self.difference.difference > 0:
            return f"{change} over {than} ({p})"
        return f"{change} against {than}, which did better on the test users ({p})"

    @property
    def p_value(self) -> str:
        """The p-value of the difference as text."""
        if self.difference is None:
            return ""
        # The spaces keep it on one line.
        return f"p = {decimals(self.difference.p_value)}".replace(" ", "\N{NO-BREAK SPACE}")

    @property
    def name(self) -> str:
        """What the answer is, in words; the name of its run if nobody gave it any."""
        name: str = self.run.model.first.run.data.tags.get(ANSWER, self.run.label)
        return name

    @property
    def random_order(self) -> float | None:
        """NDCG@10 that a random order of the items reaches; None for other metrics."""
        if self.metric != "ndcg_at_10":
            return None
        return random_ndcg_at_10(self.run.model.first.ranks)

    @property
    def headline(self) -> str:
        """What the answer is."""
        if self.random_order is not None and self.run.interval.low <= self.random_order:
            return "Nothing here orders the items better than chance"
        if self.difference is not None and self.difference.difference < 0:
            kind = "trained model" if self.is_baseline else "baseline"
            return f"{self.name} was chosen, but a {kind} scored higher on the test users"
        if self.is_baseline:
            return f"{self.name}, a baseline, is the answer, not a trained model"
        if self.difference is None or self.difference.p_value >= ALPHA:
            return f"{self.name} was chosen; no test shows that it is better than the baselines"
        return f"{self.name} is the model to use"


def random_ndcg_at_10(ranks: RankTable) -> float:
    """Return the expected NDCG@10 of a random order of the items that targets were ranked among.

    An item in the history that is not ranked counts as one less, also if it is there twice.
    """
    gains = 1 / np.log2(np.arange(2, 12))
    lists = ranks.frame.group_by("user", "history_length").agg(targets=pl.col("target").n_unique())
    ranked = np.full(len(lists), ranks.protocol.num_items)
    if ranks.protocol.seen == "filter":
        ranked = np.maximum(1, ranked - lists["history_length"].to_numpy())
    best = np.cumsum(gains)[np.minimum(lists["targets"].to_numpy(), 10) - 1]
    reached = np.cumsum(gains)[np.minimum(ranked, 10) - 1] * lists["targets"].to_numpy() / ranked
    values = lists.with_columns(value=np.minimum(1, reached / best))
    return float(values.group_by("user").agg(pl.col("value").mean())["value"].mean())  # type: ignore[arg-type]


def sentence(answer: Answer, targets: int) -> str:
    """Say how good the answer is.

    Args:
        answer: the answer.
        targets: the number of held-out targets.
    """
    text = f"{answer.figure} on {targets:,} held-out purchases"
    text += f", {answer.verdict}." if answer.verdict else "."
    if answer.random_order is None:
        return text
    return f"{text} A random order of the items reaches {decimals(answer.random_order)}."


def _is_baseline(run: RankedRun) -> bool:
    return run.row.model in BASELINES


def _change(difference: float, rival: float) -> str:
    """Return a difference relative to the metric of the rival.

    >>> _change(0.0123, 0.1), _change(-0.01, 0.1), _change(0.1, 0)
    ('+12%', '−10%', '+.1000')
    """
    if not rival:
        return decimals(difference, "+")
    share = round(100 * difference / rival)
    return f"{share:+d}%".replace("-", "−")


class RacePoint(NamedTuple):
    """One measurement of a candidate."""

    seconds: float
    """Since the start of the race."""
    epochs: int
    """The epochs it had trained by then; 0 for counts."""
    ndcg: float
    """NDCG@10 on the validation targets."""

    @property
    def when(self) -> str:
        """When it was measured, in words."""
        return f"{self.seconds:,.0f} s" + (f", epoch {self.epochs:g}" if self.epochs else "")


@dataclass(frozen=True, slots=True)
class Heat:
    """One candidate of the race."""

    candidate: str
    """Its name."""
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
    """A baseline that the candidates are measured against."""

    name: str
    settings: str
    """Those that were chosen, in words; empty if it has none."""
    ndcg: float
    """NDCG@10 on the validation targets."""
    seconds: float
    """What choosing them took."""


class RankedHeat(NamedTuple):
    """A candidate at its place, with its style."""

    heat: Heat
    style: Style


def ranked_heats(heats: Sequence[Heat]) -> list[RankedHeat]:
    """Return the winners, then the others, each by their best NDCG@10."""
    ordered = sorted(heats, key=lambda heat: (not heat.won, -(heat.best or 0.0)))
    styles = styles_by_merit(len(ordered))
    return [RankedHeat(heat, style) for heat, style in zip(ordered, styles, strict=True)]


def draw_race(heats: Sequence[Heat], baseline: TunedBaseline | None = None) -> Picture | None:
    """Draw NDCG@10 on validation over seconds, one line per candidate; None without measurements.

    The line of a candidate that did not win ends with a cross.

    Args:
        heats: the candidates, in any order.
        baseline: a dashed line shows what it reaches.
    """
    lines = [
        Line(
            label=heat.candidate,
            xs=[point.seconds for point in heat.points],
            ys=[point.ndcg for point in heat.points],
            places=[point.when for point in heat.points],
            values=[decimals(point.ndcg) for point in heat.points],
            style=style,
            strong=heat.won,
            cross=not heat.won,
        )
        for heat, style in ranked_heats(heats)
        if heat.points
    ]
    if not lines:
        return None
    seconds = max(line.xs[-1] for line in lines)
    caption = (
        "NDCG@10 on the validation targets, over time. A line that ends with a cross was followed "
        "no further. The colours are those of the table below. "
    )
    if baseline is not None:
        lines.append(_level(baseline, seconds))
        caption += "The dashed grey line is the best baseline. "
    heights = [y for line in lines for y in line.ys]
    minutes = seconds > 180
    if minutes:
        lines = [replace(line, xs=[x / 60 for x in line.xs]) for line in lines]
    x = value_axis(
        "minutes since the start" if minutes else "seconds since the start",
        0,
        seconds / 60 if minutes else seconds,
        8,
    )
    y = value_axis("NDCG@10 on validation", min(heights), max(heights))
    return draw(
        "race",
        "The race",
        caption + "The test targets had no part in it.",
        FULL,
        lambda width: draw_lines(lines, width, x, y, "The race of the candidates", height=380),
        Values(
            ("candidate", "measured at", "NDCG@10 on validation"),
            tuple(
                (heat.candidate, point.when, decimals(point.ndcg))
                for heat, _ in ranked_heats(heats)
                for point in heat.points
            ),
        ),
    )


def _level(baseline: TunedBaseline, seconds: float) -> Line:
    return Line(baseline.name, [0, seconds], [baseline.ndcg] * 2, dashed=True)


_BINS = 60
"""The number of periods of the picture over time."""
_OLDEST, _LATEST = 100_000_000, 5_000_000_000
"""Times between these are seconds since 1970: 1973 to 2128. Others are numbers of any scale."""
_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
"""Seconds, milliseconds, microseconds and nanoseconds."""


@dataclass(frozen=True, eq=False)
class LogSummary:
    """Facts of a log that describe it; no choice is made from them.

    Lengths and times are of the whole log, which is the training, validation and test part.
    Popularity is counted on the training part, as models see it.
    """

    name: str
    """The name or path of the log."""
    rows: int
    """The rows of the source, the dropped ones included."""
    dropped: Mapping[str, int]
    """How many rows were dropped, by reason; empty reasons are left out."""
    users: int
    items: int
    """The size of the catalogue: the items of training and validation."""
    interactions: int
    """The interactions that were kept: training, validation and test."""
    parts: Mapping[str, int]
    """The number of interactions in training, validation and test."""
    lengths: NDArray[np.int64]
    """Shape [U]: the number of interactions of each user."""
    counts: NDArray[np.int64]
    """Shape [I], descending: the training interactions of each item."""
    periods: NDArray[np.float64]
    """Shape [P + 1]: the edges of equally long periods, in seconds since 1970 if times are dates,
    else on the scale of the log."""
    per_period: NDArray[np.int64]
    """Shape [P]: the number of interactions in each period."""
    dated: bool
    """Are the times dates?"""
    repeats: float
    """The share of interactions with an item that the user had before, 0 to 1."""
    findings: tuple[Finding, ...]
    """The findings of the audit."""

    @classmethod
    def of(cls, dataset: PreparedDataset, findings: Sequence[Finding] = ()) -> LogSummary:
        """Describe a prepared dataset.

        Args:
            dataset: the dataset.
            findings: those of `recsys.data.audit.audit`.
        """
        counts = dataset.manifest.counts
        trained = dataset.items[dataset.in_training]
        popularity = np.bincount(trained, minlength=dataset.num_items + 1)[1:]
        times = np.asarray(dataset.timestamps)
        first = int(times.min())
        per_period, edges = np.histogram(times - first, bins=_BINS)  # nanoseconds exceed floats
        unit = _unit(first, int(times.max()))
        return cls(
            name=dataset.manifest.origin,
            rows=counts["rows_read"],
            dropped={reason: n for reason, n in dataset.manifest.dropped.items() if n},
            users=dataset.num_users,
            items=dataset.num_items,
            interactions=counts["interactions"],
            parts={
                "training": counts["train"],
                "validation": counts["valid"],
                "test": counts["test"],
            },
            lengths=np.diff(dataset.offsets),
            counts=np.sort(popularity)[::-1].astype(np.int64),
            periods=(first + edges) / (unit or 1),
            per_period=per_period.astype(np.int64),
            dated=unit is not None,
            repeats=_share_of_repeats(dataset),
            findings=tuple(findings),
        )


def _unit(first: int, last: int) -> int | None:
    """Return how many of the times' units are a second; None if times are no dates."""
    fits = (unit for unit in _UNITS if _OLDEST * unit < first and last < _LATEST * unit)
    return next(fits, None)


def _share_of_repeats(dataset: PreparedDataset) -> float:
    """Return the share of interactions with an item of the catalogue that the user had before."""
    users = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
    known = dataset.items != PAD
    pairs = users[known] * (dataset.num_items + 1) + dataset.items[known]
    # Sorting is quicker than hashing here: np.unique of many distinct numbers is slow.
    ordered = np.sort(pairs)
    again = int(np.count_nonzero(ordered[1:] == ordered[:-1]))
    return again / len(pairs) if len(pairs) else 0.0


_CURVE = 60
"""The number of points of the popularity curve."""
_MONTH = 31 * 86_400


def log_pictures(log: LogSummary) -> list[Picture]:
    """Draw a log: over time, as wide as the page; lengths of histories and popularity."""
    return [_over_time(log), _lengths(log), _popularity(log)]


def _lengths(log: LogSummary) -> Picture:
    edges = length_edges(int(log.lengths.max(initial=1)))
    counts = np.histogram(log.lengths, [*edges, np.inf])[0].tolist()
    first = next((number for number, count in enumerate(counts) if count), 0)
    edges, counts = edges[first:], counts[first:]
    bars = []
    for number, (low, count) in enumerate(zip(edges, counts, strict=True)):
        last = number == len(edges) - 1
        high = int(log.lengths.max(initial=low)) if last else edges[number + 1] - 1
        label = str(low) if high <= low else f"{low}–{high}"
        text = f"{count:,} users, {count / max(log.users, 1):.1%}"
        bars.append(Bar(label, count, f"{label} interactions", text))
    middle = float(np.median(log.lengths)) if len(log.lengths) else 0.0
    return draw(
        "log_lengths",
        "Lengths of the histories",
        f"Half of the users have {middle:g} interactions or fewer; the longest history has "
        f"{int(log.lengths.max(initial=0)):,}.",
        HALF,
        lambda width: draw_bars(
            bars, width, "interactions of a user", "users", "Users by length of their history"
        ),
        bar_values(bars, "length of the history", "users"),
    )


def length_edges(longest: int) -> list[int]:
    """Return where the bins of lengths begin: single lengths while they are few, else doubling.

    >>> length_edges(4), length_edges(100)
    ([1, 2, 3, 4], [1, 2, 4, 8, 16, 32, 64])
    """
    if longest <= 12:
        return list(range(1, max(longest, 1) + 1))
    return [2**power for power in range(int(np.log2(longest)) + 1)]


def _popularity(log: LogSummary) -> Picture:
    total = max(int(log.counts.sum()), 1)
    shares = np.concatenate([[0], np.cumsum(log.counts) / total])
    chosen = np.unique(np.linspace(0, log.items, _CURVE).round().astype(np.int64))
    xs, ys = chosen / max(log.items, 1), shares[chosen]
    top = shares[max(1, round(log.items / 10))] if log.items else 0.0
    line = Line(
        "",
        xs.tolist(),
        ys.tolist(),
        places=[f"the {x:.1%} most popular items" for x in xs],
        values=[f"{y:.0%} of the interactions" for y in ys],
        style=BEST,
        strong=True,
    )
    x = value_axis("items, the most popular first", 0, 1, percent=True)
    y = value_axis("share of the training interactions", 0, 1, percent=True)
    return draw(
        "log_popularity",
        "Popularity",
        f"The most popular tenth of the items has {top:.0%} of the training interactions.",
        HALF,
        lambda width: draw_lines(
            [line], width, x, y, "Share of the interactions of the most popular items", height=230
        ),
        line_values([line], "items", "share of the training interactions"),
    )


def _over_time(log: LogSummary) -> Picture:
    span = float(log.periods[-1] - log.periods[0])
    names = [time_label(edge, log.dated, span) for edge in log.periods.tolist()]
    bars = [
        Bar(
            name,
            count,
            f"{time_label(low, log.dated, 0)} to {time_label(high, log.dated, 0)}",
            f"{count:,} interactions",
        )
        for name, low, high, count in zip(
            names, log.periods, log.periods[1:], log.per_period.tolist(), strict=False
        )
    ]
    unit = "date (UTC)" if log.dated else "time, in the unit of the log"
    first, last = (time_label(float(end), log.dated, 0) for end in log.periods[[0, -1]])
    return draw(
        "log_time",
        "Over time",
        f"From {first} to {last}, in {len(bars)} periods of equal length.",
        FULL,
        lambda width: draw_bars(bars, width, unit, "interactions", "Interactions over time"),
        bar_values(bars, "period", "interactions"),
    )


def time_label(time: float, dated: bool, span: float) -> str:
    """Return a time of the log as text: a month where the span is long, a day where it is short.

    >>> time_label(0, True, 1e9), time_label(86400, True, 0), time_label(1234, False, 5)
    ('1970-01', '1970-01-02', '1,234')
    """
    if not dated:
        return f"{time:,.0f}"
    moment = datetime.fromtimestamp(time, UTC)
    return f"{moment:%Y-%m}" if span > 4 * _MONTH else f"{moment:%Y-%m-%d}"
