"""Runs side by side: metrics, intervals and paired tests, from the tables that runs saved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recsys.config.experiment import TrackingConfig
from recsys.data.prepared import Part
from recsys.errors import InputError, printable
from recsys.evaluation.metrics import Interval, Source, bootstrap_means, source_of
from recsys.evaluation.tables import candidates_in_words
from recsys.reports.statistics import ALPHA, PairedResult, differing_fields, holm, paired_difference
from recsys.tracking.artifacts import COSTS
from recsys.tracking.store import TARGET, EvaluatedRun, differing_tags, find_runs, run_label

HEADLINE = "ndcg_at_10"
"""The metric that runs are ordered by, unless a comparison has other metrics only."""
_DIFFERENCE = ("_difference", "_difference_low", "_difference_high", "_p_value")
_NUMBERS = ("", "_low", "_high", *_DIFFERENCE, "_spread")


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One row of a comparison: a run, or several seeds of one model.

    A user's value is the mean over the seeds: the values of one user are not independent, so more
    seeds do not narrow the interval over users.
    """

    name: str
    run_id: str
    """That of the first seed."""
    model: str
    trained_on: str
    """The parts of the split it was fitted on: ``train``, or ``train, valid`` after a refit."""
    runs: tuple[EvaluatedRun, ...]
    """One per seed, at least one; they share protocol and targets."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The 95% intervals over users, of the metrics with a value per user."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """The standard deviation of the seeds' own values of each metric; empty for a single run."""
    differences: Mapping[str, PairedResult] = field(default_factory=dict)
    """The differences to the first run, of the metrics with a value per user; p-values are
    Holm-corrected. Empty for the first run."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """The logged ones of `COSTS`; means over the seeds."""

    @classmethod
    def of(cls, runs: tuple[EvaluatedRun, ...], metrics: Sequence[str]) -> ComparedRun:
        """Return the row of the seeds of a model, with all but its differences."""
        first, run = runs[0], runs[0].run
        trained_on = run.data.tags.get("trained_on", "unknown")
        row = cls(first.name, run.info.run_id, first.model, trained_on, runs)
        of_seeds = {metric: [run.value(metric) for run in runs] for metric in metrics}
        intervals = row.intervals_of(metrics)
        means = {metric: float(np.mean(values)) for metric, values in of_seeds.items()}
        several = of_seeds if len(runs) > 1 else {}
        logged = [run.run.data.metrics for run in runs]
        costs = [name for name in COSTS if all(name in metrics_of for metrics_of in logged)]
        return replace(
            row,
            metrics=means | {metric: interval.mean for metric, interval in intervals.items()},
            intervals=intervals,
            spreads={name: float(np.std(values, ddof=1)) for name, values in several.items()},
            costs={name: float(np.mean([of_run[name] for of_run in logged])) for name in costs},
        )

    @property
    def seeds(self) -> int:
        """The number of runs that it is the mean of."""
        return len(self.runs)

    @property
    def label(self) -> str:
        """Its name, with the number of its seeds if there are several, or that it was cut short."""
        ended = ", interrupted" if "interrupted" in self.runs[0].run.data.tags else ""
        return self.name + ended + (f" ({self.seeds} seeds)" if self.seeds > 1 else "")

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return one metric of every user [U]."""
        seeds = [run.table(metric).values(metric) for run in self.runs]
        return np.mean(seeds, axis=0)

    def intervals_of(self, metrics: Sequence[str]) -> dict[str, Interval]:
        """Return means with intervals over users; those of one run are exactly what it logged."""
        per_user = [metric for metric in metrics if source_of(metric) != "logged"]
        intervals: dict[str, Interval] = {}
        if self.seeds > 1:
            for metric in per_user:
                values, counts = np.unique(self.values(metric), return_counts=True)
                generator = np.random.default_rng(0)
                (intervals[metric],) = bootstrap_means(values[None], counts, generator)
            return intervals
        if of_ranks := [metric for metric in per_user if source_of(metric) == "ranks"]:
            intervals |= self.runs[0].ranks.summary(of_ranks)
        if len(of_ranks) < len(per_user) and self.runs[0].lists is not None:
            intervals |= self.runs[0].lists.summary()
        return {metric: intervals[metric] for metric in per_user}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs evaluated on the same targets under the same protocol. The first is the reference."""

    rows: tuple[ComparedRun, ...]
    metrics: tuple[str, ...]
    dataset: str
    protocol: str
    users: int
    """The number of users that metrics are averaged over, U."""
    targets: int
    """The number of targets of these users, Q."""

    def __repr__(self) -> str:
        """Return the table, as `recsys compare` prints it."""
        console = Console(color_system=None)
        with console.capture() as capture:
            console.print(comparison_table(self))
        return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")

    def is_best(self, row: ComparedRun, metric: str) -> bool:
        """Is it the best of several? More coverage or novelty is not better: none is best."""
        best = max(other.metrics[metric] for other in self.rows)
        return len(self.rows) > 1 and metric in row.intervals and row.metrics[metric] == best

    @property
    def headline(self) -> str:
        """The metric that runs are ordered by: NDCG@10, or the last with a value per user."""
        tested = [name for name in self.metrics if source_of(name) != "logged"]
        return HEADLINE if HEADLINE in tested or not tested else tested[-1]

    def by_merit(self) -> list[ComparedRun]:
        """Return the rows, the best on the headline metric first; equal ones keep their order."""
        return sorted(self.rows, key=lambda row: -self.headline_interval(row).mean)

    def headline_interval(self, row: ComparedRun) -> Interval:
        """Return the headline metric of a row."""
        metric = self.headline
        return row.intervals.get(metric) or row.intervals_of([metric])[metric]

    def difference(self, row: ComparedRun, other: ComparedRun) -> PairedResult | None:
        """Return the difference of two rows, one of them the first; None if it is not tested."""
        if other is self.rows[0]:
            return row.differences.get(self.headline)
        result = other.differences.get(self.headline)
        return None if result is None else result.of_b_against_a

    def frame(self) -> pl.DataFrame:
        """Return one row per run with one column per number; null if there is none.

        The columns are name, run_id, model, trained_on, seeds; for each metric ``M``: ``M, M_low,
        M_high, M_difference, M_difference_low, M_difference_high, M_p_value, M_spread``; and costs.
        """
        rows: list[dict[str, object]] = []
        for row in self.rows:
            names = ("name", "run_id", "model", "trained_on", "seeds")
            cells: dict[str, object] = {name: getattr(row, name) for name in names}
            for metric in self.metrics:
                _, *bounds = row.intervals.get(metric, [None] * 3)
                difference = row.differences.get(metric, [None] * 4)
                numbers = [row.metrics[metric], *bounds, *difference, row.spreads.get(metric)]
                cells |= {metric + end: value for end, value in zip(_NUMBERS, numbers, strict=True)}
            rows.append(cells | {cost: row.costs.get(cost) for cost in COSTS})
        frame = pl.DataFrame(rows, infer_schema_length=None)
        return frame.cast({pl.Null: pl.Float64}).cast({"parameters": pl.Int64})

    def by_segment(self, column: str) -> pl.DataFrame:
        """Return one row per segment of targets and run.

        The columns are the segment, name, users, targets and, for each metric ``M`` of ranks: ``M,
        M_low, M_high``, over the users with targets in the segment.

        Args:
            column: a segment column of the rank tables, see `with_segments`.
        """
        metrics = [metric for metric in self.metrics if source_of(metric) == "ranks"]
        if not metrics:
            raise InputError(f"metrics {', '.join(self.metrics)}: only rank metrics have segments")
        table, rows = self.rows[0].runs[0].ranks, []
        segments = [name for name in table.frame.columns if name not in ("user", "target", "rank")]
        if column not in segments:
            raise InputError(f"segment {column!r}: must be one of {', '.join(segments)}")
        for segment in table.frame[column].unique().sort(nulls_last=True):
            targets = table.frame.filter(pl.col(column).eq_missing(pl.lit(segment)))
            users = targets["user"].n_unique()
            for row in self.rows:
                within = replace(row, runs=tuple(run.among(targets) for run in row.runs))
                cells = {column: segment, "name": row.name, "users": users, "targets": len(targets)}
                for name, (mean, low, high) in within.intervals_of(metrics).items():
                    cells |= {name: mean, f"{name}_low": low, f"{name}_high": high}
                rows.append(cells)
        return pl.DataFrame(rows, infer_schema_length=None)


def compare(
    runs: Sequence[str],
    tracking: TrackingConfig,
    *,
    part: Part = "test",
    metrics: Sequence[str] | None = None,
    pooled: bool = False,
) -> Comparison:
    """Put MLflow runs in one table, with paired tests against the first; see `recsys.compare`.

    Metrics, intervals and tests are computed from the tables that the runs saved. Only metrics that
    need the dataset (novelty, popularity lift, diversity) are read as they were logged.
    """
    if metrics is not None and not metrics:
        raise InputError("metrics: name at least one")
    sources: set[Source] = {"ranks", "next_lists"}
    if metrics is not None:
        sources = {*map(source_of, metrics)}
    evaluated = find_runs(runs, tracking, part, sources)
    first, *others = evaluated
    for other in others:
        labels = f"runs {run_label(first.run)} and {run_label(other.run)}"
        if tags := differing_tags(other.run, first.run):
            pair = (first.run, other.run)
            ours, theirs = ((run.data.tags.get(tags[0]) or "none")[:40] for run in pair)
            raise InputError(
                f"{labels} differ in {tags[0]}: {ours!r} and {theirs!r}; "
                "compare models evaluated under one protocol"
            )
        if differing := differing_fields(first.ranks.protocol, other.ranks.protocol):
            raise InputError(f"{labels}: their rank tables differ in {', '.join(differing)}")
    common = _on_common_targets(evaluated)
    if common and "logged" in sources:
        raise InputError(
            "the runs ranked other samples of the users: compare them by metrics of ranks"
        )
    evaluated = common or evaluated
    if metrics is None:
        lengths = {run.lists.protocol.length if run.lists else 0 for run in evaluated}
        n = lengths.pop() if len(lengths) == 1 else 0  # of the lists that all of them have
        lists = (f"next_recall_at_{n}", f"next_ndcg_at_{n}") if n else ()
        metrics = ("recall_at_10", HEADLINE, *lists)
    groups = _pool_seeds(evaluated) if pooled else [(run,) for run in evaluated]
    first = evaluated[0]
    protocol = _protocol_in_words(first)
    if common:
        protocol += ", only the targets that all of these runs ranked"
    return Comparison(
        rows=_with_differences([ComparedRun.of(group, metrics) for group in groups]),
        metrics=tuple(metrics),
        dataset=first.run.data.tags.get("dataset", "unknown"),
        protocol=protocol,
        users=first.ranks.frame["user"].n_unique(),
        targets=len(first.ranks.frame),
    )


def _on_common_targets(runs: Sequence[EvaluatedRun]) -> list[EvaluatedRun]:
    """Return the runs with the targets that all have ranked; empty if that changes nothing."""
    first, *others = runs
    if all(run.ranks.frame[TARGET].equals(first.ranks.frame[TARGET]) for run in others):
        return []
    targets = first.ranks.frame
    for run in others:
        targets = targets.join(run.ranks.frame, on=TARGET, how="semi")
        if targets.is_empty():
            labels = f"{run_label(run.run)} and {run_label(first.run)}"
            raise InputError(f"runs {labels}: have no target in common")
    return [run.among(targets) for run in runs]


def _pool_seeds(runs: Sequence[EvaluatedRun]) -> list[tuple[EvaluatedRun, ...]]:
    """Group runs whose parameters differ only in seed and name, in the order of the first of each.

    The later of two runs of one seed counts; an interrupted run, or one without a seed, is a group
    of its own.
    """
    groups: dict[tuple[object, ...], dict[str, EvaluatedRun]] = {}
    for run in runs:
        params, tags = run.run.data.params, run.run.data.tags
        alike = sorted((k, v) for k, v in params.items() if k not in ("seed", "name", "precision"))
        own = "seed" not in params and run.run.info.run_id
        facts = run.model, tags.get("trained_on"), "interrupted" in tags, run.model_alone, own
        group, seed = groups.setdefault((*facts, *alike), {}), params.get("seed", "")
        if seed not in group or group[seed].run.info.start_time <= run.run.info.start_time:
            group[seed] = run
    return [tuple(group.values()) for group in groups.values()]


def _with_differences(rows: Sequence[ComparedRun]) -> tuple[ComparedRun, ...]:
    """Test every row against the first; the rows are one family for Holm's correction."""
    reference, *others = rows
    tested = [dict[str, PairedResult]() for _ in others]
    for name in reference.intervals:
        theirs = reference.values(name)
        results = [paired_difference(row.values(name), theirs) for row in others]
        corrected = holm([result.p_value for result in results])
        for tests, result, p_value in zip(tested, results, corrected, strict=True):
            tests[name] = result._replace(p_value=p_value)
    pairs = zip(others, tested, strict=True)
    return reference, *(replace(row, differences=tests) for row, tests in pairs)


def _protocol_in_words(run: EvaluatedRun) -> str:
    protocol = run.ranks.protocol
    split = run.run.data.tags.get("protocol.split", "unknown split")
    seen = {"filter": "seen items excluded", "allow": "seen items included"}[protocol.seen]
    candidates = candidates_in_words(protocol.candidates, protocol.num_items)
    text = f"{split}, {protocol.part} part, ranked over {candidates}, {seen}, "
    text += "ties against the target"
    if protocol.dropped:
        text += f", {protocol.dropped:,} targets outside the catalogue dropped"
    if protocol.without_history:
        text += f", {protocol.without_history:,} without a history dropped"
    return text


# --- In words and on a terminal ------------------------------------------------------------------


def comparison_table(comparison: Comparison) -> Table:
    """Return one line per run: the best of each metric bold, the difference in the headline."""
    rows, headline = comparison.rows, comparison.headline
    tested = headline if any(headline in row.differences for row in rows) else None
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption = Text(printable(how_measured(comparison, tested)), justify="left")
    table.add_column("run", overflow="fold", min_width=8)
    for head in [*map(title, comparison.metrics), *(["to the first (p)"] if tested else [])]:
        table.add_column(head, min_width=7)
    for row in rows:
        cells = [Text(printable(row.label))]
        for name in comparison.metrics:
            interval = row.intervals.get(name)
            text = decimals(row.metrics[name]) if interval is None else with_interval(interval)
            text += f" s {decimals(row.spreads[name])}" if name in row.spreads else ""
            cells.append(Text(text, style="bold" if comparison.is_best(row, name) else ""))
        if tested and (result := row.differences.get(tested)) is not None:
            mark = " *" if result.p_value < ALPHA else ""
            change, p_value = decimals(result.difference, "+"), decimals(result.p_value)
            cells.append(Text(f"{change} ({p_value}){mark}"))
        elif tested:
            cells.append(Text("reference", style="dim"))
        table.add_row(*cells)
    return table


def how_measured(comparison: Comparison, tested: str | None = None) -> str:
    """Describe the protocol, and how to read the numbers."""
    users, targets = comparison.users, comparison.targets
    of = f" of {users:,} users" if users != targets else ""
    text = f"{comparison.dataset}, {targets:,} targets{of}: {comparison.protocol}."
    if comparison.rows[0].intervals:
        text += " [ ]: 95% interval."
    if any(row.seeds > 1 for row in comparison.rows):
        text += " s: standard deviation of the seeds' own means."
    if tested is not None:
        text += f" (p): paired randomisation test of {title(tested)}, Holm-corrected; * below .05."
    return text


def verdict(difference: PairedResult, rival_mean: float, rival: str) -> str:
    """Say how a run compares with its rival, whose metric is given."""
    p = f"p\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{decimals(difference.p_value)}"
    change = decimals(difference.difference, "+")
    if rival_mean:
        change = f"{round(100 * difference.difference / rival_mean):+d}%".replace("-", "−")
    if difference.p_value >= ALPHA:
        return f"{change} against {rival}, which may be chance ({p})"
    if difference.difference > 0:
        return f"{change} over {rival} ({p})"
    return f"{change} against {rival}, which did better ({p})"


def with_interval(interval: Interval) -> str:
    """Format a mean and its interval: .2000 [.1000, .2500]."""
    return f"{decimals(interval.mean)} {in_brackets(interval.low, interval.high)}"


def in_brackets(low: float, high: float, sign: str = "-") -> str:
    """Format the ends of an interval: [.1000, .2500], or with the sign + also [-.5000, +.5000]."""
    return f"[{decimals(low, sign)}, {decimals(high, sign)}]"


def decimals(value: float, sign: str = "-") -> str:
    """Format a number with four decimals and no zero before the point: .1900."""
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{value:{sign}.4f}")


def title(metric: str) -> str:
    """Return the name of a metric as text: NDCG@10, next recall@5."""
    text = metric.replace("_at_", "@").replace("_", " ")
    return text.replace("ndcg", "NDCG").replace("mrr", "MRR")
