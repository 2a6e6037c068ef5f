"""Runs side by side: figures and paired tests, all from the tables of ranks and lists they keep."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from recsys.config import TrackingConfig
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.continuation import ContinuationTable
from recsys.evaluation.metrics import Interval, metric_values
from recsys.evaluation.rank_table import Protocol, RankTable
from recsys.evaluation.significance import PairedResult, holm, paired_test

logger = logging.getLogger(__name__)

_COSTS = ("fit_seconds", "peak_memory_mib", "parameters")
"""What a run may have logged of its costs."""
_COLUMNS = ("", "_low", "_high", "_difference", "_difference_low", "_difference_high", "_p_value")
"""What follows a metric's name in the columns of a frame."""


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """A run, and the tables of it that the metrics are computed from."""

    run: Run
    ranks: RankTable
    lists: ContinuationTable | None

    def figures(self, metrics: Sequence[str]) -> dict[str, Interval]:
        """To the last digit those that the run logged."""
        ranked = [name for name in metrics if not _is_of_lists(name)]
        figures = self.ranks.summary(ranked) if ranked else {}
        if len(ranked) < len(metrics):
            figures |= self._listed().summary()
        for name in metrics:
            if name not in figures:
                known = ", ".join(name for name in figures if _is_of_lists(name))
                raise InputError(f"run {_label(self.run)}: metric {name!r}: must be one of {known}")
        return {name: figures[name] for name in metrics}

    def test(self, other: _Evaluated, metric: str) -> PairedResult:
        """How much better this run is than the other."""
        if _is_of_lists(metric):
            return paired_test(self._listed(), other._listed(), metric)
        return paired_test(self.ranks, other.ranks, metric)

    def _listed(self) -> ContinuationTable:
        if self.lists is None:
            raise InputError(
                f"run {_label(self.run)}: has no lists of next purchases, hence no metrics next_..."
            )
        return self.lists


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
    users: int
    """How many users every figure is a mean over, U."""
    targets: int
    """How many targets these users have, Q."""

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
    metrics: Sequence[str] | None = None,
) -> Comparison:
    """Put MLflow runs in one table, each with a paired test against the first.

    Metrics, intervals and tests are computed from the tables that the runs keep, not from logged
    figures.

    Args:
        runs: of the experiment ``tracking.experiment``: run ids, unambiguous beginnings of ids
            (four letters or more), or names, each meaning the newest finished run of that name. An
            empty list: the newest finished run of every name, names in the order of their first,
            of those that can be compared with the newest run of all.
        tracking: where the runs are.
        part: which targets, ``test`` or ``valid``.
        metrics: of the ranks recall_at_K, ndcg_at_K or mrr; of the lists next_recall_at_n and the
            other figures of `list_figures`, n being their length. None: recall and NDCG at 10 and,
            where every run has lists, next_recall_at_n and next_ndcg_at_n. The table on a terminal
            shows the test of the last.

    Raises:
        InputError: the store, the experiment or a run is not there, a run has no rank table or not
            the lists that a metric is of, there is no such metric, or two runs differ in dataset,
            protocol or targets.
    """
    if metrics is not None and not metrics:
        raise InputError("metrics: name at least one")
    for metric in metrics or ():
        if not _is_of_lists(metric):
            metric_values(np.array([1]), metric)  # refuses unknown ones before the work
    listed = metrics is None or any(map(_is_of_lists, metrics))
    evaluated = _fetch(runs, tracking, part, listed)
    metrics = _usual_metrics(evaluated) if metrics is None else metrics
    figures = [one.figures(metrics) for one in evaluated]
    differences = _differences(evaluated, metrics)
    rows = [
        ComparedRun(
            name=one.run.info.run_name,
            run_id=one.run.info.run_id,
            model=one.run.data.tags.get("model", "unknown"),
            trained_until=one.run.data.tags.get("trained_until", "unknown"),
            figures=means,
            differences=found,
            costs={name: value for name, value in one.run.data.metrics.items() if name in _COSTS},
        )
        for one, means, found in zip(evaluated, figures, differences, strict=True)
    ]
    first, ranks = evaluated[0].run, evaluated[0].ranks
    dataset = first.data.tags.get("dataset", "unknown")
    protocol = _in_words(ranks.protocol, first.data.tags.get("protocol.split", "unknown split"))
    users, targets = len(np.unique(ranks.users)), len(ranks.frame)
    return Comparison(tuple(rows), tuple(metrics), dataset, protocol, users, targets)


def _is_of_lists(metric: str) -> bool:
    return metric.startswith("next_")


def _usual_metrics(evaluated: Sequence[_Evaluated]) -> tuple[str, ...]:
    usual = ("recall_at_10", "ndcg_at_10")
    lengths = {one.lists.protocol.length if one.lists else None for one in evaluated}
    if len(lengths) > 1 or None in lengths:
        return usual
    (n,) = lengths
    return (*usual, f"next_recall_at_{n}", f"next_ndcg_at_{n}")


def _differences(
    evaluated: Sequence[_Evaluated], metrics: Sequence[str]
) -> list[dict[str, PairedResult]]:
    """Of every run to the first; per metric, the runs are one family for Holm's correction."""
    first, *others = evaluated
    differences: list[dict[str, PairedResult]] = []
    for other in others:
        _refuse_other_tags(first.run, other.run)
        try:
            differences.append({name: other.test(first, name) for name in metrics})
        except InputError as error:
            labels = f"{_label(other.run)} and {_label(first.run)}"
            raise InputError(f"runs {labels}: {error}") from error
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


def _fetch(
    runs: Sequence[str], tracking: TrackingConfig, part: Part, listed: bool
) -> list[_Evaluated]:
    """The runs asked for, in that order, with their rank tables; with their lists if asked to."""
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
            return [_download(client, run, part, listed) for run in chosen]
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


def _download(client: MlflowClient, run: Run, part: Part, listed: bool) -> _Evaluated:
    there = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    name, lists = f"ranks_{part}.parquet", f"lists_{part}.parquet"
    if name not in there:
        raise InputError(f"run {_label(run)}: has no rank table {name} (it is {run.info.status})")
    with tempfile.TemporaryDirectory() as folder:
        fetch = partial(client.download_artifacts, run.info.run_id, dst_path=folder)
        try:
            ranks = RankTable.load(fetch(name))
            if not listed or lists not in there:
                return _Evaluated(run, ranks, None)
            return _Evaluated(run, ranks, ContinuationTable.load(fetch(lists)))
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
