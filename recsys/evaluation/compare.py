"""Runs side by side: figures and paired tests, all of them from the rank tables that runs keep."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import polars as pl
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from recsys.config import TrackingConfig
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.metrics import Interval, bootstrap_means, metric_values
from recsys.evaluation.rank_table import Protocol, RankTable
from recsys.evaluation.significance import PairedResult, holm, paired_test

logger = logging.getLogger(__name__)

_Ranked = tuple[Run, RankTable]
_COSTS = ("fit_seconds", "peak_memory_mib", "parameters")
"""What a run may have logged of its costs."""
_COLUMNS = ("", "_low", "_high", "_difference", "_difference_low", "_difference_high", "_p_value")
"""What follows a metric's name in the columns of a frame."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One line of a comparison."""

    name: str
    run_id: str
    model: str
    trained_until: str
    """The last part of the split it was fitted on: train, or valid after a refit."""
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
            cells: dict[str, object] = {
                name: getattr(row, name) for name in ("name", "run_id", "model", "trained_until")
            }
            for metric in self.metrics:
                numbers = [*row.figures[metric], *row.differences.get(metric, [None] * 4)]
                cells |= {metric + end: value for end, value in zip(_COLUMNS, numbers, strict=True)}
            rows.append(cells | {cost: row.costs.get(cost) for cost in _COSTS})
        frame = pl.DataFrame(rows, infer_schema_length=None)
        return frame.cast({pl.Null: pl.Float64}).cast({"parameters": pl.Int64})


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
            empty list: the newest finished run of every name, names in the order of their first,
            of those that can be compared with the newest run of all.
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
            trained_until=run.data.tags.get("trained_until", "unknown"),
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
    for tag in _differing_tags(a, b):
        ours, theirs = ((run.data.tags.get(tag) or "none")[:12] for run in (a, b))
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
        chosen = [_find(wanted, there, newest) for wanted in runs] or _alike(newest.values())
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


def _alike(runs: Collection[Run]) -> list[Run]:
    """Those that can be compared with the newest of them."""
    if not runs:
        return []
    newest = max(runs, key=lambda run: run.info.start_time)
    alike = [run for run in runs if not _differing_tags(newest, run)]
    if len(alike) < len(runs):
        logger.info(
            "left out %d runs of other data or another protocol than %s, the newest",
            len(runs) - len(alike),
            _label(newest),
        )
    return alike


def _differing_tags(a: Run, b: Run) -> list[str]:
    """Those of data and protocol that the runs do not share."""
    ours, theirs = a.data.tags, b.data.tags
    protocol = sorted(t for t in ours.keys() | theirs.keys() if t.startswith("protocol."))
    return [t for t in ("dataset_fingerprint", *protocol) if ours.get(t) != theirs.get(t)]


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
    before = os.environ.get(variable)
    os.environ[variable] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
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
