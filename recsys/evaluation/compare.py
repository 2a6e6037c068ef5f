"""Runs side by side: figures and paired tests, all of them from the rank tables that runs keep."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
from recsys.evaluation.significance import PairedResult, paired_test

_COSTS = {"fit_seconds": "fit s", "peak_memory_mib": "peak MiB", "parameters": "parameters"}
"""What a run may have logged of its costs, and the head of its column."""

_SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One line of a comparison."""

    name: str
    run_id: str
    model: str
    """What was fitted, e.g. ``target_attention``."""
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
    """Name or path of the log."""
    protocol: str
    """In words."""
    targets: int
    """How many targets every figure is a mean over, Q."""

    def frame(self) -> pl.DataFrame:
        """One row per run, one flat column per number; null where there is none.

        Columns: name, run_id, model; for each metric ``M``: ``M, M_low, M_high, M_difference,
        M_difference_low, M_difference_high, M_p_value``; fit_seconds, peak_memory_mib, parameters.
        """
        ends = (
            "",
            "_low",
            "_high",
            "_difference",
            "_difference_low",
            "_difference_high",
            "_p_value",
        )
        rows: list[dict[str, object]] = []
        for row in self.rows:
            cells: dict[str, object] = {"name": row.name, "run_id": row.run_id, "model": row.model}
            for metric in self.metrics:
                numbers = [*row.figures[metric], *row.differences.get(metric, [None] * 4)]
                cells |= {metric + end: number for end, number in zip(ends, numbers, strict=True)}
            rows.append(cells | {cost: row.costs.get(cost) for cost in _COSTS})
        types = dict.fromkeys(list(rows[0])[3:], pl.Float64) | {"parameters": pl.Int64}
        return pl.DataFrame(rows, infer_schema_length=None).cast(types)

    def table(self) -> Table:
        """One line per run for the terminal; the best of each metric is bold, and the difference to
        the first run is that of the last metric.
        """
        tested, several = self.metrics[-1], len(self.rows) > 1
        costs = [cost for cost in _COSTS if any(cost in row.costs for row in self.rows)]
        best = {name: max(row.figures[name].mean for row in self.rows) for name in self.metrics}
        table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
        table.caption = Text(self._caption())
        for head in ("run", "id", "model"):
            table.add_column(head, overflow="fold")
        for name in self.metrics:
            table.add_column(_title(name), no_wrap=True)
        if several:
            table.add_column(f"{_title(tested)} to first (p)", no_wrap=True)
        for cost in costs:
            table.add_column(_COSTS[cost], justify="right", no_wrap=True)
        for row in self.rows:
            cells = [Text(row.name), Text(row.run_id[:8], style="dim"), Text(row.model)]
            for name, figure in row.figures.items():
                is_best = several and figure.mean == best[name]
                cells.append(Text(_interval(figure), style="bold" if is_best else ""))
            if several:
                cells.append(_difference(row.differences.get(tested)))
            cells += [Text(f"{row.costs[c]:,.0f}" if c in row.costs else "") for c in costs]
            table.add_row(*cells)
        return table

    def _caption(self) -> str:
        caption = (
            f"{self.dataset}, {self.targets:,} targets: {self.protocol}. "
            "[ ]: 95% bootstrap interval over the targets."
        )
        if len(self.rows) > 1:
            caption += " (p): paired randomisation test, Holm-corrected; * below .05."
        return caption


def compare(
    runs: Sequence[str],
    tracking: TrackingConfig,
    *,
    part: Part = "test",
    metrics: Sequence[str] = ("recall_at_10", "ndcg_at_10"),
) -> Comparison:
    """Put MLflow runs in one table, each with a paired test against the first.

    Nothing is taken from logged figures: metrics, intervals and tests are computed from each run's
    rank table.

    Args:
        runs: of the experiment ``tracking.experiment``: run ids, unambiguous beginnings of ids (four
            letters or more), or names, which mean the newest finished run of that name. None given:
            the newest finished run of every name, the oldest of them first.
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
        metric_values(np.ones(1, dtype=np.int64), metric)  # refuses unknown ones before the work
    evaluated = _fetch(runs, tracking, part)
    first, table = evaluated[0]
    for other, _ in evaluated[1:]:
        _refuse_unlike(first, other)
    rows = [
        ComparedRun(
            name=run.info.run_name,
            run_id=run.info.run_id,
            model=run.data.tags.get("model", "unknown"),
            figures=_figures(ranked, metrics),
            differences=differences,
            costs={name: value for name, value in run.data.metrics.items() if name in _COSTS},
        )
        for (run, ranked), differences in zip(
            evaluated, _differences(evaluated, metrics), strict=True
        )
    ]
    return Comparison(
        rows=tuple(rows),
        metrics=tuple(metrics),
        dataset=first.data.tags.get("dataset", "unknown"),
        protocol=_in_words(table.protocol, first.data.tags),
        targets=len(table.frame),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, in the order given (Holm 1979, step-down).

    The smallest of m is multiplied by m, the next by m - 1 and so on; none falls below a smaller
    one, none exceeds 1. Calling those below .05 significant errs at all in 5% of such families.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    given = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(given)
    corrected = np.empty_like(given)
    steps = given[order] * np.arange(len(given), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(p) for p in corrected]


class _Evaluated(NamedTuple):
    run: Run
    table: RankTable


def _figures(table: RankTable, metrics: Sequence[str]) -> dict[str, Interval]:
    """As `summarise` does, so that the figures are those the run logged."""
    distinct, counts = np.unique(table.ranks, return_counts=True)
    values = np.stack([metric_values(distinct, metric) for metric in metrics])
    intervals = bootstrap_means(values, counts, np.random.default_rng(0))
    return dict(zip(metrics, intervals, strict=True))


def _differences(
    evaluated: Sequence[_Evaluated], metrics: Sequence[str]
) -> list[dict[str, PairedResult]]:
    """Of every run to the first; per metric, the runs are one family for Holm's correction."""
    first, *others = evaluated
    differences: list[dict[str, PairedResult]] = [{} for _ in evaluated]
    for metric in metrics:
        results = [_paired(other, first, metric) for other in others]
        corrected = holm([result.p_value for result in results])
        for found, result, p_value in zip(differences[1:], results, corrected, strict=True):
            found[metric] = result._replace(p_value=p_value)
    return differences


def _paired(a: _Evaluated, b: _Evaluated, metric: str) -> PairedResult:
    try:
        return paired_test(a.table, b.table, metric)
    except InputError as error:
        raise InputError(f"runs {_label(a.run)} and {_label(b.run)}: {error}") from error


def _refuse_unlike(a: Run, b: Run) -> None:
    """By what the runs are tagged with; the paired test compares the rank tables themselves."""
    ours, theirs = a.data.tags, b.data.tags
    protocol = sorted(tag for tag in ours.keys() | theirs.keys() if tag.startswith("protocol."))
    for tag in ("dataset_fingerprint", *protocol):
        if ours.get(tag) != theirs.get(tag):
            raise InputError(
                f"runs {_label(a)} and {_label(b)} differ in {tag}: {ours.get(tag)} of "
                f"{ours.get('dataset')} and {theirs.get(tag)} of {theirs.get('dataset')}; "
                "compare models evaluated alike"
            )


def _fetch(runs: Sequence[str], tracking: TrackingConfig, part: Part) -> list[_Evaluated]:
    """The runs asked for, in that order, with their rank tables."""
    database = Path(tracking.uri.removeprefix("sqlite:///"))
    if tracking.uri.startswith("sqlite:///") and not database.is_file():
        # MLflow would make an empty store there.
        raise InputError(f"tracking.uri {tracking.uri}: {database} does not exist")
    try:
        client = MlflowClient(tracking.uri)
        there = _runs_of(client, tracking)
        chosen = [_find(wanted, there, tracking) for wanted in runs] or _newest_of_each_name(there)
        if not chosen:
            raise InputError(f"experiment {tracking.experiment!r}: no run has finished")
        with _no_progress_bar():
            return [_Evaluated(run, _rank_table(client, run, part)) for run in chosen]
    except (MlflowException, OSError) as error:
        raise InputError(f"tracking.uri {tracking.uri}: cannot be used: {error}") from error


def _runs_of(client: MlflowClient, tracking: TrackingConfig) -> list[Run]:
    """Every run of the experiment, the newest first."""
    experiment = client.get_experiment_by_name(tracking.experiment)
    if experiment is None:
        names = ", ".join(sorted(found.name for found in client.search_experiments()))
        raise InputError(
            f"tracking.experiment {tracking.experiment!r}: not in {tracking.uri}, which has {names}"
        )
    newest_first = ["attributes.start_time DESC"]
    return list(client.search_runs([experiment.experiment_id], "", 1, 50_000, newest_first))


def _find(wanted: str, there: Sequence[Run], tracking: TrackingConfig) -> Run:
    """A run by its id, the newest finished by its name, or a run by the beginning of its id."""
    by_id = [run for run in there if run.info.run_id == wanted]
    by_name = [run for run in _finished(there) if run.info.run_name == wanted]
    if by_id or by_name:
        return (by_id or by_name)[0]
    # Of four letters or more: a mistyped name must not pass for the one id that begins with "e".
    found = [run for run in there if len(wanted) >= 4 and run.info.run_id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(run.info.run_id for run in found)
        raise InputError(f"run {wanted!r}: the ids of several runs begin so: {ids}")
    newest = ", ".join(_label(run) for run in _newest_of_each_name(there)[::-1][:10])
    raise InputError(
        f"run {wanted!r}: neither an id nor the name of a finished run in experiment "
        f"{tracking.experiment!r}; the newest there: {newest or 'none'}"
    )


def _finished(there: Sequence[Run]) -> list[Run]:
    return [run for run in there if run.info.status == "FINISHED"]


def _newest_of_each_name(there: Sequence[Run]) -> list[Run]:
    """From runs with the newest first; the oldest of those kept comes first."""
    newest: dict[str, Run] = {}
    for run in _finished(there):
        newest.setdefault(run.info.run_name, run)
    return list(newest.values())[::-1]


def _rank_table(client: MlflowClient, run: Run, part: Part) -> RankTable:
    name = f"ranks_{part}.parquet"
    if name not in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}:
        status = run.info.status.lower()
        raise InputError(f"run {_label(run)}: has no rank table {name}; its status is {status}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            return RankTable.load(client.download_artifacts(run.info.run_id, name, folder))
        except InputError as error:
            raise InputError(f"run {_label(run)}: {error}") from error


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """MLflow would draw one per file; it listens to the environment alone."""
    variable = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
    before = os.environ.get(variable)
    os.environ[variable] = "false"
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before


def _label(run: Run) -> str:
    return f"{run.info.run_name} ({run.info.run_id[:8]})"


def _in_words(protocol: Protocol, tags: Mapping[str, str]) -> str:
    seen = {"filter": "seen items left out", "allow": "seen items ranked too"}[protocol.seen]
    ties = {"against_target": "ties against the target", "item_id": "ties by item id"}
    return (
        f"{protocol.part} targets of {tags.get('protocol.split', 'an unnamed split')} ranked over "
        f"the catalogue of {protocol.num_items:,} items, {seen}, {ties[protocol.ties]}, "
        f"{protocol.dropped:,} targets outside the catalogue dropped"
    )


def _title(metric: str) -> str:
    return metric.replace("_at_", "@")


def _decimals(value: float, sign: str = "-") -> str:
    """Without the zero before the point: 0.19 is .1900."""
    return f"{value:{sign}.4f}".replace("0.", ".", 1)


def _interval(figure: Interval) -> str:
    return f"{_decimals(figure.mean)} [{_decimals(figure.low)}, {_decimals(figure.high)}]"


def _difference(result: PairedResult | None) -> Text:
    if result is None:
        return Text("baseline", style="dim")
    mark = " *" if result.p_value < _SIGNIFICANT else ""
    return Text(f"{_decimals(result.difference, sign='+')} ({_decimals(result.p_value)}){mark}")
