"""Runs side by side: figures and paired tests, all of them from the rank tables that runs keep."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import polars as pl
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from recsys.config import TrackingConfig
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.metrics import Interval, bootstrap_means, metric_values
from recsys.evaluation.rank_table import Protocol, RankTable
from recsys.evaluation.significance import PairedResult, holm, paired_test

_Ranked = tuple[Run, RankTable]
_COSTS = {"fit_seconds": "fit s", "peak_memory_mib": "peak MiB", "parameters": "parameters"}
"""What a run may have logged of its costs, and the head of its column."""
_COLUMNS = ("", "_low", "_high", "_difference", "_difference_low", "_difference_high", "_p_value")
"""What follows a metric's name in the columns of a frame."""

_ROOMY = 142
"""Columns of a terminal that has room for all of a comparison."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One line of a comparison."""

    name: str
    run_id: str
    model: str
    figures: Mapping[str, Interval]
    """Mean and 95% interval of each metric, by its name."""
    differences: Mapping[str, PairedResult]
    """Of each metric to the first run's; the p-values are Holm's. Empty for the first run."""
    costs: Mapping[str, float]
    """Those of fit_seconds, peak_memory_mib and parameters that the run logged."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs evaluated on the same targets under the same protocol. The first is the baseline."""

    rows: tuple[ComparedRun, ...]
    metrics: tuple[str, ...]
    dataset: str
    protocol: str
    targets: int
    """How many targets every figure is a mean over, Q."""

    def frame(self) -> pl.DataFrame:
        """One row per run, one flat column per number; null where there is none.

        Columns: name, run_id, model; for each metric ``M``: ``M, M_low, M_high, M_difference,
        M_difference_low, M_difference_high, M_p_value``; fit_seconds, peak_memory_mib, parameters.
        """
        rows: list[dict[str, object]] = []
        for row in self.rows:
            cells: dict[str, object] = {"name": row.name, "run_id": row.run_id, "model": row.model}
            for metric in self.metrics:
                numbers = [*row.figures[metric], *row.differences.get(metric, [None] * 4)]
                cells |= {metric + end: value for end, value in zip(_COLUMNS, numbers, strict=True)}
            rows.append(cells | {cost: row.costs.get(cost) for cost in _COSTS})
        frame = pl.DataFrame(rows, infer_schema_length=None)
        return frame.cast({pl.Null: pl.Float64}).cast({"parameters": pl.Int64})

    def table(self, width: int) -> Table:
        """One line per run: the best of each metric bold, the difference in the last one.

        Ids, models and costs are shown where a terminal of ``width`` columns has room for them.
        """
        tested, several, roomy = self.metrics[-1], len(self.rows) > 1, width >= _ROOMY
        costs = [c for c in _COSTS if roomy and any(c in row.costs for row in self.rows)]
        best = {name: max(row.figures[name].mean for row in self.rows) for name in self.metrics}
        caption = f"{self.dataset}, {self.targets:,} targets: {self.protocol}. [ ]: 95% interval."
        if several:
            caption += (
                f" (p): paired randomisation test of {tested.replace('_at_', '@')}, "
                "Holm-corrected; * below .05."
            )
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=Text(caption, justify="left"))
        for head in ("run", "id", "model") if roomy else ("run",):
            table.add_column(head, overflow="fold", min_width=8)
        for name in self.metrics:
            table.add_column(name.replace("_at_", "@"), no_wrap=True)
        if several:
            table.add_column("to the first (p)", no_wrap=True)
        for cost in costs:
            table.add_column(_COSTS[cost], justify="right", no_wrap=True)
        for row in self.rows:
            cells = [Text(row.name)]
            if roomy:
                cells += [Text(row.run_id[:8], style="dim"), Text(row.model)]
            for name, figure in row.figures.items():
                mean, low, high = map(_decimals, figure)
                is_best = several and figure.mean == best[name]
                cells.append(Text(f"{mean} [{low}, {high}]", style="bold" if is_best else ""))
            if several:
                cells.append(_difference(row.differences.get(tested)))
            cells += [Text(f"{row.costs[c]:,.0f}" if c in row.costs else "") for c in costs]
            table.add_row(*cells)
        return table


def compare(
    runs: Sequence[str],
    tracking: TrackingConfig,
    *,
    part: Part = "test",
    metrics: Sequence[str] = ("recall_at_10", "ndcg_at_10"),
) -> Comparison:
    """Put MLflow runs in one table, each with a paired test against the first.

    Metrics, intervals and tests are computed from the runs' rank tables, not from logged figures.

    Args:
        runs: of the experiment ``tracking.experiment``: run ids, unambiguous beginnings of ids
            (four letters or more), or names, each meaning the newest finished run of that name. An
            empty list: the newest finished run of every name, names in the order of their first.
        tracking: where the runs are.
        part: which targets, ``test`` or ``valid``.
        metrics: recall_at_K, ndcg_at_K or mrr; `Comparison.table` shows the test of the last.

    Raises:
        InputError: the store, the experiment or a run is not there, a run has no rank table, there
            is no such metric, or two runs differ in dataset, protocol or targets.
    """
    if not metrics:
        raise InputError("metrics: name at least one")
    for metric in metrics:
        metric_values(np.array([1]), metric)  # refuses unknown ones before the work
    evaluated = _fetch(runs, tracking, part)
    differences = _differences(evaluated, metrics)
    rows = [
        ComparedRun(
            name=run.info.run_name,
            run_id=run.info.run_id,
            model=run.data.tags.get("model", "unknown"),
            figures=_figures(table, metrics),
            differences=found,
            costs={name: value for name, value in run.data.metrics.items() if name in _COSTS},
        )
        for (run, table), found in zip(evaluated, differences, strict=True)
    ]
    first, table = evaluated[0]
    dataset = first.data.tags.get("dataset", "unknown")
    protocol = _in_words(table.protocol, first.data.tags.get("protocol.split", "unknown split"))
    return Comparison(tuple(rows), tuple(metrics), dataset, protocol, len(table.frame))


def _figures(table: RankTable, metrics: Sequence[str]) -> dict[str, Interval]:
    """As `summarise` does, so that the figures are those the run logged."""
    distinct, counts = np.unique(table.ranks, return_counts=True)
    values = np.stack([metric_values(distinct, name) for name in metrics])
    return dict(
        zip(metrics, bootstrap_means(values, counts, np.random.default_rng(0)), strict=True)
    )


def _differences(
    evaluated: Sequence[_Ranked], metrics: Sequence[str]
) -> list[dict[str, PairedResult]]:
    """Of every run to the first; per metric, the runs are one family for Holm's correction."""
    (first, first_table), *others = evaluated
    differences: list[dict[str, PairedResult]] = []
    for run, table in others:
        _refuse_other_tags(first, run)
        try:
            differences.append({name: paired_test(table, first_table, name) for name in metrics})
        except InputError as error:
            raise InputError(f"runs {_label(run)} and {_label(first)}: {error}") from error
    for name in metrics:
        corrected = holm([found[name].p_value for found in differences])
        for found, p_value in zip(differences, corrected, strict=True):
            found[name] = found[name]._replace(p_value=p_value)
    return [{}, *differences]


def _refuse_other_tags(a: Run, b: Run) -> None:
    """Data and protocol as tagged; the paired test compares the rank tables themselves."""
    protocol = sorted(
        t for t in a.data.tags.keys() | b.data.tags.keys() if t.startswith("protocol.")
    )
    for tag in ("dataset_fingerprint", *protocol):
        ours, theirs = a.data.tags.get(tag), b.data.tags.get(tag)
        if ours != theirs:
            raise InputError(
                f"runs {_label(a)} and {_label(b)} differ in {tag}: {ours!r} and {theirs!r}; "
                "compare models evaluated alike"
            )


def _fetch(runs: Sequence[str], tracking: TrackingConfig, part: Part) -> list[_Ranked]:
    """The runs asked for, in that order, with their rank tables."""
    database = tracking.database
    if database is not None and not database.is_file():  # MLflow would make an empty one
        raise InputError(f"tracking.uri {tracking.uri}: {database} does not exist")
    try:
        client = MlflowClient(tracking.absolute_uri)
        there = _runs_of(client, tracking)
        newest = {run.info.run_name: run for run in there if run.info.status == "FINISHED"}
        chosen = [_find(wanted, there, newest) for wanted in runs] or list(newest.values())
        if not chosen:
            raise InputError(f"experiment {tracking.experiment!r}: no run has finished")
        with _no_progress_bar():
            return [(run, _rank_table(client, run, part)) for run in chosen]
    except (MlflowException, OSError) as error:
        raise InputError(f"tracking.uri {tracking.uri}: cannot be used: {error}") from error


def _runs_of(client: MlflowClient, tracking: TrackingConfig) -> list[Run]:
    """Every run of the experiment, the oldest first (of more than 50,000, the newest so many)."""
    experiment = client.get_experiment_by_name(tracking.experiment)
    if experiment is None:
        names = ", ".join(sorted(found.name for found in client.search_experiments()))
        raise InputError(
            f"tracking.experiment {tracking.experiment!r}: not in {tracking.uri}, which has {names}"
        )
    newest_first = ["attributes.start_time DESC"]
    return client.search_runs([experiment.experiment_id], "", 1, 50_000, newest_first)[::-1]


def _find(wanted: str, there: Sequence[Run], newest: Mapping[str, Run]) -> Run:
    """A run by its id, the newest finished by its name, or a run by the beginning of its id."""
    by_id = [run for run in there if run.info.run_id.startswith(wanted)]
    if wanted in newest and wanted not in (run.info.run_id for run in by_id):
        return newest[wanted]
    # Of four letters or more: a mistyped name must not pass for the one id that begins with "e".
    if not by_id or len(wanted) < 4:
        raise InputError(
            f"run {wanted!r}: neither an id nor the name of a finished run; the newest there: "
            + (", ".join(map(_label, list(newest.values())[:-11:-1])) or "none")
        )
    if len(by_id) > 1:
        ids = ", ".join(run.info.run_id for run in by_id)
        raise InputError(f"run {wanted!r}: the ids of several runs begin so: {ids}")
    return by_id[0]


def _rank_table(client: MlflowClient, run: Run, part: Part) -> RankTable:
    name = f"ranks_{part}.parquet"
    if name not in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}:
        raise InputError(f"run {_label(run)}: has no rank table {name} (it is {run.info.status})")
    with tempfile.TemporaryDirectory() as folder:
        try:
            return RankTable.load(client.download_artifacts(run.info.run_id, name, folder))
        except InputError as error:
            raise InputError(f"run {_label(run)}: {error}") from error


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """MLflow would draw one per file; it listens to the environment alone."""
    variable = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
    before = os.environ.get(variable, "true")
    os.environ[variable] = "false"
    try:
        yield
    finally:
        os.environ[variable] = before


def _label(run: Run) -> str:
    return f"{run.info.run_name} ({run.info.run_id[:8]})"


def _in_words(protocol: Protocol, split: str) -> str:
    seen = {"filter": "seen items left out", "allow": "seen items ranked too"}[protocol.seen]
    ties = {"against_target": "against the target", "item_id": "by item id"}[protocol.ties]
    return (
        f"{split}, {protocol.part} part, ranked over all {protocol.num_items:,} items, {seen}, "
        f"ties {ties}, {protocol.dropped:,} targets outside the catalogue dropped"
    )


def _decimals(value: float, sign: str = "-") -> str:
    """Without the zero before the point: 0.19 is .1900."""
    return f"{value:{sign}.4f}".replace("0.", ".", 1)


def _difference(result: PairedResult | None) -> Text:
    if result is None:
        return Text("baseline", style="dim")
    mark = " *" if result.p_value < 0.05 else ""
    return Text(f"{_decimals(result.difference, sign='+')} ({_decimals(result.p_value)}){mark}")
