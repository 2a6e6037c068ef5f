"""The report of an automatic run: one page with the answer, the race, the log and some users."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from matplotlib.ticker import StrMethodFormatter

from recsys.baselines.tuned import BASELINES
from recsys.data.audit import Finding
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.metrics import user_means
from recsys.evaluation.tables import RankTable
from recsys.folders.atomic import new_file
from recsys.reports.charts import MUTED, RUNS, Chart, Series, add_lines, chart, new_axes
from recsys.reports.charts import styles_by_merit as styles_of
from recsys.reports.comparison import (
    HEADLINE,
    ComparedRun,
    Comparison,
    decimals,
    heading,
    with_interval,
)
from recsys.reports.comparison_page import (
    audit_table,
    draw_segments,
    every_number,
    forests,
    measured,
)
from recsys.reports.pages import Cell, Item, Section, Table, UserCard, render
from recsys.reports.statistics import ALPHA, PairedResult, holm
from recsys.serving.calibration import for_evaluation
from recsys.serving.explain import explain_items
from recsys.serving.histories import UserHistories
from recsys.serving.recommender import Recommender
from recsys.tracking.artifacts import ANSWER

_KINDS = ("history", "popularity_decile")
"""The kinds of users and items whose figures are shown."""
_LIST, _NEWEST, _REASONS = 10, 6, 2
"""The numbers of items that are shown: of a list, of a history, and of reasons for an item."""
_PERIODS = 60
"""The number of periods of the chart of the log over time."""
_OLDEST, _LATEST = 100_000_000, 5_000_000_000
"""Times between these are seconds since 1970: 1973 to 2128. Others are numbers of any scale."""
_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
"""Seconds, milliseconds, microseconds and nanoseconds."""


class RacePoint(NamedTuple):
    """One measurement of a racer."""

    seconds: float
    """Since the start of the race."""
    epochs: int
    """The epochs it had trained by then; 0 for counts."""
    ndcg: float
    """NDCG@10 on the validation targets."""


class Racer(NamedTuple):
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


class TunedBaseline(NamedTuple):
    """A baseline that the racers are measured against."""

    name: str
    settings: str
    """Those that were chosen, in words; empty if it has none."""
    ndcg: float
    """NDCG@10 on the validation targets."""
    seconds: float
    """What choosing them took."""


class Choice(NamedTuple):
    """A setting that was chosen, and why."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True, eq=False)
class RunReport:
    """Everything that the page of an automatic run shows."""

    name: str
    """The name of the run."""
    dataset: PreparedDataset
    """The log."""
    comparison: Comparison
    """The model and the baselines, on the test targets; the first is the reference of the tests."""
    command: str
    """The command that makes the run again."""
    date: datetime
    seconds: float
    """How long all of it took."""
    answer: str | None = None
    """The id of the run that is the answer; the best of the comparison if None."""
    findings: Sequence[Finding] = ()
    """Those of the audit of the log."""
    choices: Sequence[Choice] = ()
    racers: Sequence[Racer] = ()
    """The race, in any order."""
    baselines: Sequence[TunedBaseline] = ()
    """What they reach on validation, best first."""
    examples: Sequence[UserCard] = ()
    """See `examples_of`."""
    next_steps: Sequence[str] = ()
    """What to try next, in sentences."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions, the machine and its peak memory, by name."""


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
    comparison, counts = report.comparison, report.dataset.manifest.counts
    (headline, lead), racers = answer_in_words(comparison, report.answer), by_outcome(report.racers)
    tried = [
        _candidates(racers),
        Table(
            "Baselines on validation",
            ("baseline", "settings", "NDCG@10", "seconds to tune"),
            [(b.name, b.settings, decimals(b.ndcg), f"{b.seconds:,.1f}") for b in report.baselines],
        ),
        Table("Settings, and why", ("setting", "value", "reason"), report.choices),
    ]
    dropped = {reason: n for reason, n in report.dataset.manifest.dropped.items() if n}
    in_words = ", ".join(f"{count:,} ({reason})" for reason, count in dropped.items()) or "none"
    parts = {"training": "train", "validation": "valid", "test": "test"}
    facts = {
        "log": report.dataset.manifest.origin,
        "rows": f"{counts['rows_read']:,} read, dropped: {in_words}",
        "interactions": ", ".join(f"{counts[key]:,} {part}" for part, key in parts.items()),
        **measured(comparison),
        "made": f"{report.date:%Y-%m-%d %H:%M %Z}".rstrip(),
        "took": duration(report.seconds),
        **report.versions,
    }
    sections = [
        Section("At a glance", charts=forests(comparison)),
        Section("For whom, and for what", charts=draw_segments(comparison, _KINDS)),
        Section("Every number", tables=[every_number(comparison)]),
        Section(
            "What was tried",
            charts=draw_race(racers, next(iter(report.baselines), None)),
            tables=[table for table in tried if table.rows],
        ),
        Section(
            "The log",
            numbers=_log_numbers(report.dataset),
            charts=[_draw_times(report.dataset), _draw_lengths(report.dataset)],
            tables=[audit_table(report.findings)] if report.findings else (),
        ),
        Section(
            f"{len(report.examples)} users",
            _about_examples(report.examples),
            users=report.examples,
        ),
        Section("What to try next", points=report.next_steps),
        Section("Make it again", code=report.command, facts=facts),
    ]
    return render(f"{report.name}: report", headline, lead, sections, report.name)


def _candidates(racers: Sequence[Racer]) -> Table:
    rows = [
        (
            Cell(racer.name, [racer.description], style.key, "chosen" if racer.won else ""),
            "" if racer.best is None else decimals(racer.best),
            f"{racer.points[-1].epochs:g}" if racer.points else "",
            f"{racer.points[-1].seconds:,.0f}" if racer.points else "",
            racer.outcome,
        )
        for racer, style in zip(racers, styles_of(len(racers)), strict=True)
    ]
    head = ("candidate", "best on validation", "epochs", "seconds", "outcome")
    return Table("Candidates", head, rows)


def by_outcome(racers: Sequence[Racer]) -> list[Racer]:
    """Return the winners, then the others, each by their best NDCG@10."""
    return sorted(racers, key=lambda racer: (not racer.won, -(racer.best or 0.0)))


def draw_race(racers: Sequence[Racer], baseline: TunedBaseline | None = None) -> list[Chart]:
    """Draw NDCG@10 on validation over time, one line per racer; nothing without measurements.

    The line of a racer that did not win ends with a cross.

    Args:
        racers: in the order of the table.
        baseline: a broken line shows what it reaches.
    """
    if not any(racer.points for racer in racers):
        return []
    minutes = max(racer.points[-1].seconds for racer in racers if racer.points) > 180
    axes = new_axes(f"{'minutes' if minutes else 'seconds'} since the start", "NDCG@10")
    lines, numbers = [], []
    for racer, style in zip(racers, styles_of(len(racers)), strict=True):
        times = [point.seconds / (60 if minutes else 1) for point in racer.points]
        values = [point.ndcg for point in racer.points]
        lines += [Series(racer.name, times, values, style, strong=racer.won)] * bool(times)
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
    return [chart(axes, "race", "The race", caption, head, numbers)]


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


# --- The answer ----------------------------------------------------------------------------------


def answer_in_words(comparison: Comparison, run_id: str | None = None) -> tuple[str, str]:
    """Return what the answer is, as a headline, and how good it is, in a sentence.

    It is compared with the best baseline or, if it is one, with the best trained model; the p-value
    is Holm-corrected for all other runs of the same targets.

    Args:
        comparison: the answer, and baselines or models to compare it with.
        run_id: the id of the answer; the best of the comparison if None.

    Raises:
        InputError: the comparison has no such run.
    """
    metric, rows = comparison.headline, comparison.by_merit()
    whole = [row for row in rows if not row.first.model_alone]
    chosen = rows[:1] if run_id is None else [row for row in whole if row.run_id == run_id]
    if not chosen:
        raise InputError(f"run {run_id}: is not in the comparison")
    answer = chosen[0]
    name = answer.first.run.data.tags.get(ANSWER, answer.label)
    is_baseline = answer.model in BASELINES
    rival = next((row for row in whole if (row.model in BASELINES) != is_baseline), None)
    difference = None if rival is None else _difference(comparison, answer, rival)
    interval = comparison.headline_interval(answer)
    text = f"{heading(metric)} {with_interval(interval)} on {comparison.targets:,} held-out "
    text += "purchases"
    if rival is not None:
        than = f"the best {'trained model' if is_baseline else 'baseline'}, {rival.label}"
        text += f", {verdict(difference, comparison.headline_interval(rival).mean, than)}"
    chance = random_ndcg_at_10(answer.first.ranks) if metric == HEADLINE else -math.inf
    text += "."
    if metric == HEADLINE:
        text += f" A random order of the items reaches {decimals(chance)}."
    return headline(name, is_baseline, difference, above_chance=interval.low > chance), text


def headline(
    name: str, is_baseline: bool, difference: PairedResult | None, *, above_chance: bool
) -> str:
    """Say what the answer is, which differs so much from its rival (None: is not compared)."""
    if not above_chance:
        return "Nothing here orders the items better than chance"
    if difference is not None and difference.difference < 0:
        kind = "trained model" if is_baseline else "baseline"
        return f"{name} was chosen, but a {kind} scored higher on the test users"
    if is_baseline:
        return f"{name}, a baseline, is the answer, not a trained model"
    if difference is None or difference.p_value >= ALPHA:
        return f"{name} was chosen; no test shows that it is better than the baselines"
    return f"{name} is the model to use"


def verdict(difference: PairedResult | None, rival_mean: float, than: str) -> str:
    """Say how an answer compares with its rival, whose metric is given."""
    if difference is None:
        return f"on other targets than {than}, so that the two cannot be compared"
    # The spaces keep it on one line.
    p = f"p = {decimals(difference.p_value)}".replace(" ", "\N{NO-BREAK SPACE}")
    change = decimals(difference.difference, "+")
    if rival_mean:
        change = f"{round(100 * difference.difference / rival_mean):+d}%".replace("-", "−")
    if difference.p_value >= ALPHA:
        return f"{change} against {than}, which may be chance ({p})"
    if difference.difference > 0:
        return f"{change} over {than} ({p})"
    return f"{change} against {than}, which did better on the test users ({p})"


def _difference(
    comparison: Comparison, answer: ComparedRun, rival: ComparedRun
) -> PairedResult | None:
    """Return the answer minus its rival; None if they have other targets."""
    if not rival.first.shares_targets(answer.first):
        return None
    others = [
        row
        for row in comparison.by_merit()
        if row is not answer and row.first.shares_targets(answer.first)
    ]
    # Drawn as the tests of the table, each run against the answer: with the same p-values.
    tests = [
        row.test(answer, comparison.headline, comparison.method, across_protocols=True)
        for row in others
    ]
    place = others.index(rival)
    p_value = holm([test.p_value for test in tests])[place]
    return tests[place]._replace(p_value=p_value).of_b_against_a


def random_ndcg_at_10(ranks: RankTable) -> float:
    """Return the expected NDCG@10 of a random order of the items that targets were ranked among.

    An item in the history that is not ranked counts as one less, also if it is there twice.
    """
    gains = np.cumsum(1 / np.log2(np.arange(2, 12)))
    lists = ranks.frame.group_by("user", "history_length").agg(targets=pl.col("target").n_unique())
    targets, ranked = lists["targets"].to_numpy(), np.full(len(lists), ranks.protocol.num_items)
    if ranks.protocol.seen == "filter":
        ranked = np.maximum(1, ranked - lists["history_length"].to_numpy())
    reached = gains[np.minimum(ranked, 10) - 1] * targets / ranked
    values = np.minimum(1, reached / gains[np.minimum(targets, 10) - 1])
    return float(user_means(values, lists["user"].to_numpy()).mean())


# --- The log -------------------------------------------------------------------------------------


def _log_numbers(dataset: PreparedDataset) -> dict[str, str]:
    """Return the sizes of a log, and two shares that describe it."""
    users = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
    known = dataset.items != PAD
    pairs = users[known] * (dataset.num_items + 1) + dataset.items[known]
    # Sorting is quicker than hashing here: np.unique of many distinct numbers is slow.
    ordered = np.sort(pairs)
    repeats = np.count_nonzero(ordered[1:] == ordered[:-1]) / max(len(pairs), 1)
    trained = dataset.items[dataset.in_training]
    counts = np.sort(np.bincount(trained, minlength=dataset.num_items + 1)[1:])[::-1]
    tenth = counts[: max(1, round(dataset.num_items / 10))].sum() / max(counts.sum(), 1)
    return {
        "users": f"{dataset.num_users:,}",
        "items": f"{dataset.num_items:,}",
        "interactions": f"{dataset.manifest.counts['interactions']:,}",
        "of them repeats": f"{repeats:.0%}",
        "on the most popular tenth": f"{tenth:.0%}",
    }


def _draw_times(dataset: PreparedDataset) -> Chart:
    times = np.asarray(dataset.timestamps)
    first, last = int(times.min()), int(times.max())
    # Counted from the first: nanoseconds exceed floats.
    counts, edges = np.histogram(times - first, bins=_PERIODS)
    fits = (unit for unit in _UNITS if _OLDEST * unit < first and last < _LATEST * unit)
    unit = next(fits, None)
    names = [
        f"{edge:,.0f}" if unit is None else f"{datetime.fromtimestamp(edge, UTC):%Y-%m-%d}"
        for edge in ((first + edges) / (unit or 1)).tolist()
    ]
    axes = new_axes("date (UTC)" if unit else "time, in the unit of the log", "interactions")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.stairs(counts, fill=True, color=RUNS[0][0])
    axes.set_xticks(range(10, len(names), 20), names[10::20])  # away from the corner
    caption = f"From {names[0]} to {names[-1]}, in {_PERIODS} periods of equal length."
    return chart(axes, "log_time", "Over time", caption)


def _draw_lengths(dataset: PreparedDataset) -> Chart:
    """Draw how many users have histories of a length; long ones in bins that double."""
    lengths = np.diff(dataset.offsets)
    longest, shortest = int(lengths.max()), int(lengths.min())
    edges = [2**power for power in range(int(np.log2(longest)) + 1)]
    if longest <= 12:
        edges = list(range(1, longest + 1))
    ends = [*edges[1:], longest + 1]
    bins = [(low, high - 1) for low, high in zip(edges, ends, strict=True) if high > shortest]
    names = [str(low) if low == high else f"{low}–{high}" for low, high in bins]
    counts = [int(((low <= lengths) & (lengths <= high)).sum()) for low, high in bins]
    axes = new_axes("users", "interactions of a user", 60 + 17 * len(names))
    axes.barh(names, counts, color=RUNS[0][0])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.locator_params("x", integer=True, nbins=6)
    caption = f"Half of the users have {np.median(lengths):g} interactions or fewer; the longest "
    caption += f"history has {longest:,}."
    head = ("length of the history", "users", "share")
    shares = zip(names, counts, strict=True)
    rows = [(name, f"{count:,}", f"{count / len(lengths):.1%}") for name, count in shares]
    return chart(axes, "log_lengths", "Lengths of the histories", caption, head, rows)


# --- Users ---------------------------------------------------------------------------------------


def examples_of(
    recommender: Recommender,
    dataset: PreparedDataset,
    users: int = 20,
    seed: int = 0,
    seconds: float = math.inf,
) -> tuple[UserCard, ...]:
    """Return the lists of some users with a test target, drawn at random.

    Each list is made from the history before the held-out item. The reasons for an item are the
    items of the history that speak for it most, each with its part of all that the history adds
    or takes (`recsys.serving.explain`).

    Args:
        recommender: the model.
        dataset: the dataset that it was trained on, or that of a later log.
        users: how many users; fewer if fewer have a test target.
        seed: of the draw.
        seconds: after so many, the other users are left out.

    Raises:
        InputError: there is no test target; see `for_evaluation`.
    """
    bundle, ends = recommender.bundle, time.monotonic() + seconds
    encoded = for_evaluation(bundle, dataset, "test")
    holdout = find_holdout(encoded, "test", bundle.experiment.evaluation.request_time)
    _, firsts = np.unique(holdout.users, return_index=True)
    generator = np.random.default_rng(seed)
    cards: dict[int, UserCard] = {}
    for row in map(int, generator.choice(firsts, min(users, len(firsts)), replace=False)):
        if cards and time.monotonic() > ends:
            break
        cards[row] = _example(recommender, encoded, holdout, row)
    return tuple(cards[row] for row in sorted(cards))


def _example(
    recommender: Recommender, dataset: PreparedDataset, holdout: Holdout, row: int
) -> UserCard:
    bundle, user = recommender.bundle, holdout.users[row : row + 1]
    histories = holdout.histories.take(holdout.history_rows[row : row + 1])
    length = len(histories.items)
    history = UserHistories(
        dataset.user_ids.gather(user), histories, np.zeros(1, dtype=np.int64), np.arange(length)
    )
    at = int(dataset.timestamps[holdout.positions[row]]) if bundle.times == "request" else None
    best = recommender.recommend(history, k=min(_LIST, bundle.num_items), at=at)
    items, ids = best["item_id"].to_list(), bundle.vocabulary.decode(histories.items).to_list()
    (held_out,) = bundle.vocabulary.decode(holdout.targets[row : row + 1]).to_list()
    try:
        reasons = [_reasons(parts) for parts in explain_items(bundle, history, items, at=at)]
    except InputError:  # no item of the history is known
        reasons = [[] for _ in items]
    newest = ids[::-1][:_NEWEST]
    names = _names(
        bundle, {held_out, *items, *newest, *(id_ for pair in reasons for id_, _ in pair)}
    )
    return UserCard(
        user_id=str(history.user_ids[0]),
        history_length=length,
        newest=[Item(names[item], str(item)) for item in newest],
        items=[
            Item(
                names[item],
                str(item),
                "again" if item in ids else "",
                ", ".join(f"{names[reason]} {share:.0%}" for reason, share in why),
                item == held_out,
            )
            for item, why in zip(items, reasons, strict=True)
        ],
        held_out=Item(names[held_out], str(held_out)),
    )


def _reasons(parts: pl.DataFrame) -> list[tuple[Any, float]]:
    """Return the items of a history with the largest shares of an explanation."""
    of_items = parts.group_by("item_id", maintain_order=True).agg(pl.col("share").sum())
    positive = of_items.filter(pl.col("share") > 0).sort("share", descending=True)
    return positive.head(_REASONS).rows()


def _names(bundle: Any, items: set[Any]) -> dict[Any, str]:
    """Return the names of items by their ids; the id itself where there is no name."""
    table, columns = bundle.item_table, bundle.name_columns
    names = {item: str(item) for item in items}
    if columns:
        some = table.filter(pl.col("item_id").is_in(list(items)), pl.col(columns[0]).is_not_null())
        named = some.select("item_id", pl.col(columns[0]).cast(pl.String)).iter_rows()
        names |= {item: name for item, name in named if name}
    return names


def _about_examples(examples: Sequence[UserCard]) -> str:
    hits = sum(any(item.held_out for item in user.items) for user in examples)
    text = "Drawn at random from the users with a test target. Each list is made from the history "
    text += (
        f"before the held-out item; it holds that item, marked “taken next”, for {hits} of them."
    )
    if any(item.reasons for user in examples for item in user.items):
        text += " Below each item are the purchases that speak for it most, with their share of "
        text += "all that the history adds to its score or takes from it."
    return text
