"""The page of an automatic run: the answer, the race, the log and some users, in one file."""

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from recsys.baselines.tuned import BASELINES
from recsys.data.audit import Finding
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.metrics import user_means
from recsys.evaluation.tables import CATALOGUE, RankTable
from recsys.folders import new_file
from recsys.reports.charts import BROKEN, STYLES, Chart, add_line, chart, new_axes
from recsys.reports.comparison import HEADLINE, Comparison, decimals, title, verdict, with_interval
from recsys.reports.comparison_page import every_number, forests
from recsys.reports.pages import Cell, Section, Table, render
from recsys.serving.bundle import ModelBundle, for_evaluation
from recsys.serving.explain import explain_items
from recsys.serving.histories import UserHistories
from recsys.serving.recommender import Recommender
from recsys.tracking.artifacts import ANSWER

_LIST, _NEWEST, _REASONS = 10, 6, 2
"""The numbers of items that are shown: of a list, of a history, and of reasons for an item."""


class RacePoint(NamedTuple):
    """NDCG@10 of a racer on validation, after so many seconds of its own training."""

    seconds: float
    epochs: int
    """The epochs it had trained by then; 0 for counts."""
    ndcg: float


class Racer(NamedTuple):
    """A model of the race, or a baseline that it is measured against."""

    name: str
    description: str
    points: tuple[RacePoint, ...]
    """Its measurements in the order of time; none if it could not be trained, one of a baseline."""
    outcome: str
    """What became of it: dropped after 4 epochs, stopped early …"""
    won: bool = False

    @property
    def best(self) -> float | None:
        """Its best NDCG@10 on validation; None if it was never measured."""
        return max((point.ndcg for point in self.points), default=None)

    @property
    def is_baseline(self) -> bool:
        """Are there counts in place of epochs?"""
        return not any(point.epochs for point in self.points)


class Choice(NamedTuple):
    """A setting that was chosen, and why."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True, eq=False)
class RunReport:
    """Everything that the page of an automatic run shows."""

    name: str
    dataset: PreparedDataset
    comparison: Comparison
    """On the test targets: the answer first, then models and baselines to compare it with."""
    command: str
    date: datetime
    seconds: float
    findings: Sequence[Finding] = ()
    choices: Sequence[Choice] = ()
    racers: Sequence[Racer] = ()
    """The models of the race and the baselines, in any order."""
    examples: Table | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions, the machine and its peak memory, by name."""


def write_run_report(path: str | os.PathLike[str], report: RunReport) -> Path:
    """Write the page as one HTML file, atomically, and return its path.

    It needs no other file and no network; the same report gives the same bytes.
    """
    comparison, racers = report.comparison, by_outcome(report.racers)
    settings = Table("Settings, and why", ("setting", "value", "reason"), report.choices)
    facts = {
        "command": report.command,
        "made": f"{report.date:%Y-%m-%d %H:%M %Z}".rstrip(),
        "took": f"{report.seconds / 60:.1f} minutes",
        **report.versions,
    }
    sections = [
        Section("At a glance", forests(comparison)),
        Section("Every number", tables=[every_number(comparison)]),
        Section("What was tried", draw_race(racers), tables=[_race_table(racers), settings]),
        Section("The log", (), _facts_of_log(report.dataset), [_audit_table(report.findings)]),
        Section("What it recommends", tables=[report.examples] if report.examples else ()),
        Section("Make it again", facts=facts),
    ]
    headline, lead = answer_in_words(comparison)
    with new_file(Path(path)) as file:
        file.write_text(render(headline, lead, sections, report.name), encoding="utf-8")
    return Path(path)


def by_outcome(racers: Sequence[Racer]) -> list[Racer]:
    """Return the winners, then the others, each by their best NDCG@10."""
    return sorted(racers, key=lambda racer: (not racer.won, -(racer.best or 0.0)))


def _race_table(racers: Sequence[Racer]) -> Table:
    rows = [
        (
            Cell(racer.name, [racer.description], "chosen" if racer.won else ""),
            "" if racer.best is None else decimals(racer.best),
            f"{racer.points[-1].epochs:g}" if racer.points else "",
            f"{racer.points[-1].seconds:,.0f}" if racer.points else "",
            racer.outcome,
        )
        for racer in racers
    ]
    head = ("candidate", "best NDCG@10", "epochs", "seconds", "outcome")
    return Table("On validation", head, rows)


def draw_race(racers: Sequence[Racer]) -> list[Chart]:
    """Draw NDCG@10 on validation over time, one line per racer; nothing without measurements.

    The line of a racer that did not win ends with a cross; a broken line is the best baseline.
    """
    trained = [racer for racer in racers if racer.points and not racer.is_baseline]
    if not trained:
        return []
    longest = max(racer.points[-1].seconds for racer in trained)
    unit, seconds = ("minutes", 60) if longest > 180 else ("seconds", 1)
    axes = new_axes(f"{unit} of training", "NDCG@10 on validation")
    for racer, style in zip(trained, cycle(STYLES), strict=False):
        times = [point.seconds / seconds for point in racer.points]
        values = [point.ndcg for point in racer.points]
        add_line(axes, racer.name, times, values, style)
        if not racer.won:
            axes.plot(times[-1:], values[-1:], "x", color=style.colour, ms=9, mew=2, zorder=50)
    axes.set_xlim(left=0)
    caption = "A line that ends with a cross was followed no further. "
    baselines = [(racer.best, racer.name) for racer in racers if racer.is_baseline and racer.best]
    if baselines:
        best, name = max(baselines)
        axes.axhline(best, **BROKEN)
        caption += f"The broken line is the best baseline, {name}. "
    return [chart(axes, "race", "The race", caption)]


def answer_in_words(comparison: Comparison) -> tuple[str, str]:
    """Return what the answer is, the first run, as a headline, and how good it is, in a sentence.

    It is compared with the best baseline or, if it is one, with the best trained model.
    """
    answer = comparison.rows[0]
    name = answer.runs[0].run.data.tags.get(ANSWER, answer.label)
    is_baseline = answer.model in BASELINES
    rivals = [row for row in comparison.by_merit() if not row.runs[0].model_alone]
    rival = next((row for row in rivals if (row.model in BASELINES) != is_baseline), None)
    difference = None if rival is None else comparison.difference(answer, rival)
    interval = comparison.headline_interval(answer)
    text = f"{title(HEADLINE)} {with_interval(interval)} on {comparison.targets:,} held-out "
    text += "purchases"
    if rival is not None and difference is not None:
        than = f"the best {'trained model' if is_baseline else 'baseline'}, {rival.label}"
        text += f", {verdict(difference, comparison.headline_interval(rival).mean, than)}"
    headline = f"{name}, a baseline, is the answer" if is_baseline else f"{name} is the answer"
    if (ranks := answer.runs[0].ranks).protocol.candidates == CATALOGUE:
        chance = random_ndcg_at_10(ranks)
        text += f". A random order of the items reaches {decimals(chance)}"
        if interval.low <= chance:
            headline = "Nothing here orders the items better than chance"
    return headline, f"{text}."


def random_ndcg_at_10(ranks: RankTable) -> float:
    """Return the expected NDCG@10 of a random order of the catalogue, seen items included."""
    gains = np.cumsum(1 / np.log2(np.arange(2, 12)))
    lists = ranks.frame.group_by("user", "history_length").agg(targets=pl.col("target").n_unique())
    targets, ranked = lists["targets"].to_numpy(), ranks.protocol.num_items
    reached = gains[np.minimum(ranked, 10) - 1] * targets / ranked
    values = np.minimum(1, reached / gains[np.minimum(targets, 10) - 1])
    return float(user_means(values, lists["user"].to_numpy()).mean())


def _facts_of_log(dataset: PreparedDataset) -> dict[str, str]:
    """Return the sizes of a log, and what was left out of it."""
    counts, lengths = dataset.manifest.counts, np.diff(dataset.offsets)
    dropped = {reason: n for reason, n in dataset.manifest.dropped.items() if n}
    in_words = ", ".join(f"{count:,} ({reason})" for reason, count in dropped.items()) or "none"
    return {
        "log": dataset.manifest.origin,
        "rows": f"{counts['rows_read']:,} read, dropped: {in_words}",
        "users": f"{dataset.num_users:,}, half of them with {np.median(lengths):g} interactions or "
        f"fewer, at most {lengths.max():,}",
        "items": f"{dataset.num_items:,}",
        "interactions": f"{counts['interactions']:,}: {counts['train']:,} training, "
        f"{counts['valid']:,} validation, {counts['test']:,} test",
    }


def _audit_table(findings: Sequence[Finding]) -> Table:
    """Return the findings of an audit that have cases, the warnings first and marked."""
    rows = []
    for finding in sorted(findings, key=lambda finding: finding.severity != "warn"):
        if finding.count:
            name = Cell(finding.name, tag="warning" if finding.severity == "warn" else "")
            rows.append((name, f"{finding.count:,}", f"{finding.share:.1%}", finding.sentence))
    return Table("Audit of the data", ("finding", "count", "share", "meaning"), rows)


def examples_of(
    recommender: Recommender, dataset: PreparedDataset, users: int = 20, seconds: float = math.inf
) -> Table:
    """Return the lists of some users with a test target, made from the histories before it.

    Each item has its reasons (`recsys.serving.explain`). After so many seconds the other users are
    left out.
    """
    bundle, ends = recommender.bundle, time.monotonic() + seconds
    encoded = for_evaluation(bundle, dataset, "test")
    holdout = find_holdout(encoded, "test", bundle.experiment.evaluation.request_time)
    _, firsts = np.unique(holdout.users, return_index=True)
    generator = np.random.default_rng(0)
    rows: list[tuple[Cell, ...]] = []
    for row in map(int, generator.choice(firsts, min(users, len(firsts)), replace=False)):
        if rows and time.monotonic() > ends:
            break
        user = encoded.user_ids.gather(holdout.users[row : row + 1])
        histories = holdout.histories.take(holdout.history_rows[row : row + 1])
        history = UserHistories.of_tokens(user, histories)
        (target,) = bundle.vocabulary.decode(holdout.targets[row : row + 1]).to_list()
        rows.append(_example(recommender, history, target))
    hits = sum(bool(target.tag) for *_, target in rows)
    caption = f"Drawn at random; the target is in the list of {hits} of {len(rows)}. Beside an "
    caption += "item are the purchases that speak for it most, with their share of all that the "
    caption += "history adds to its score or takes from it."
    head = ("user", "the newest of the history", "recommended, the best first", "taken next")
    return Table(f"{len(rows)} users", head, rows, caption)


def _example(recommender: Recommender, history: UserHistories, target: Any) -> tuple[Cell, ...]:
    bundle, tokens = recommender.bundle, history.histories.items
    best = recommender.recommend(history, k=min(_LIST, bundle.num_items))
    items, newest = best["item_id"].to_list(), bundle.vocabulary.decode(tokens).to_list()[::-1]
    reasons = []
    for parts in explain_items(bundle, history, items) if items else ():
        of_items = parts.group_by("item_id", maintain_order=True).agg(pl.col("share").sum())
        positive = of_items.filter(pl.col("share") > 0).sort("share", descending=True)
        reasons.append(positive.head(_REASONS).rows())
    names = _names(bundle, {target, *items, *newest})
    lines = []
    for place, (item, why) in enumerate(zip(items, reasons, strict=True), 1):
        because = ", ".join(f"{names[reason]} {share:.0%}" for reason, share in why)
        lines.append(f"{place}. {names[item]}" + (f" ({because})" if because else ""))
    tag = f"{items.index(target) + 1}. in the list" if target in items else ""
    return (
        Cell(str(history.user_ids[0]), [f"{len(tokens):,} in the history"]),
        Cell("", [names[item] for item in newest[:_NEWEST]]),
        Cell("", lines),
        Cell(names[target], tag=tag),
    )


def _names(bundle: ModelBundle, items: set[Any]) -> dict[Any, str]:
    """Return the names of items by their ids: with the id where two share one or there is none."""
    names = {item: str(item) for item in items}
    for column in bundle.name_columns[:1]:
        known = bundle.item_table.filter(pl.col("item_id").is_in(list(items)))
        named = known.select("item_id", pl.col(column).cast(pl.String)).iter_rows()
        names |= {item: name for item, name in named if name}
    counts = Counter(names.values())
    return {item: name if counts[name] == 1 else f"{name} ({item})" for item, name in names.items()}
