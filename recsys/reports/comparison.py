"""Runs side by side: metrics, intervals and paired tests, from the tables that runs saved."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from recsys.config import TrackingConfig
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.candidates import candidates_in_words
from recsys.evaluation.metrics import Interval, Source, find_metric
from recsys.reports.statistics import (
    Method,
    ModelRuns,
    PairedResult,
    holm,
    pool_seeds,
    refuse_different,
)
from recsys.reports.tables import ComparedRun, Comparison
from recsys.tracking.artifacts import COSTS
from recsys.tracking.evaluated_run import EvaluatedRun, run_label
from recsys.tracking.runs import Run, differing_tags, find_runs

logger = logging.getLogger(__name__)


def compare(
    runs: Sequence[str],
    tracking: TrackingConfig,
    *,
    part: Part = "test",
    metrics: Sequence[str] | None = None,
    across_protocols: bool = False,
    pooled: bool = False,
    method: Method = "randomisation",
) -> Comparison:
    """Put MLflow runs in one table, each with a paired test against the first.

    A model with a count ensemble has a second row, of the model alone, where only ranks are
    compared.

    Metrics, intervals and tests are computed from the tables that the runs saved. Only metrics that
    need the dataset (novelty, popularity lift, diversity) are read as they were logged. Runs that
    differ only in the sample of users that they ranked are compared on the targets of all of them.

    Args:
        runs: runs of the experiment ``tracking.experiment``: ids, unambiguous beginnings of ids
            (four letters or more), or names, each meaning the latest finished run of that name. If
            empty, the latest finished run of every name that can be compared with the latest run
            of all, in the order of the first run of each name.
        tracking: the store of the runs.
        part: the targets, ``test`` or ``valid``.
        metrics: names that `find_metric` knows; the n of ``next_...`` metrics is the length of the
            lists. If None, recall and NDCG at 10 and, if every run has lists of next purchases,
            next_recall_at_n and next_ndcg_at_n. The table on a terminal shows the test of the last
            metric that has one.
        across_protocols: also compare runs of different protocols, untested if their targets
            differ.
        pooled: make one row of runs that differ only in seed and name, named after the first.
        method: the test that p-values come from: ``randomisation``, or ``t`` for the paired t-test.

    Raises:
        InputError: the store, the experiment, a run, or a table that a metric needs is missing;
            there is no such metric; or two runs differ in dataset or protocol, or have no target
            in common, without ``across_protocols``.
    """
    if metrics is not None and not metrics:
        raise InputError("metrics: name at least one")
    sources: set[Source] = {"ranks", "next_lists"}
    if metrics is not None:
        sources = {find_metric(metric).source for metric in metrics}
    evaluated = find_runs(runs, tracking, part, sources, across_protocols)
    common = [] if across_protocols else _on_common_targets(evaluated, refuses=bool(runs))
    if common:
        if "logged" in sources:
            raise InputError(
                "the runs ranked other samples of the users: compare them by metrics of ranks"
            )
        evaluated = common
    metrics = _usual_metrics(evaluated) if metrics is None else metrics
    models = pool_seeds(evaluated) if pooled else [ModelRuns((run,)) for run in evaluated]
    per_user = [metric for metric in metrics if find_metric(metric).per_user]
    intervals = [model.intervals(metrics) for model in models]
    differences = _differences(models, per_user, method, across_protocols)
    numbers = zip(models, intervals, differences, strict=True)
    ranks = evaluated[0].ranks
    datasets = dict.fromkeys(run.run.data.tags.get("dataset", "unknown") for run in evaluated)
    protocol = " | ".join(dict.fromkeys(map(_in_words, evaluated)))
    if common:
        protocol += ", only the targets that all of these runs ranked"
    return Comparison(
        rows=tuple(_row(*numbers_of_row, metrics) for numbers_of_row in numbers),
        metrics=tuple(metrics),
        dataset=" | ".join(datasets),
        protocol=protocol,
        users=len(np.unique(ranks.users)),
        targets=len(ranks.frame),
        models=tuple(models),
        method=method,
    )


def _on_common_targets(runs: Sequence[EvaluatedRun], *, refuses: bool) -> list[EvaluatedRun]:
    """Return the runs with the targets that all have ranked; empty if that changes nothing.

    Args:
        runs: the latest of them, if not ``refuses``, decides which others can be compared.
        refuses: refuse runs without a common target. Else those are left out, and named.

    Raises:
        InputError: there is no common target.
    """
    first = runs[0] if refuses else max(runs, key=lambda run: run.run.info.start_time)
    protocol, keys = first.ranks.protocol, ["user", "history_length", "target"]
    if any(differing_tags(first.run, run.run) or run.ranks.protocol != protocol for run in runs):
        return []  # refused for that
    if all(run.shares_targets(first) for run in runs):
        return []
    targets, left_out = first.ranks.frame.select(keys), set()
    for run in runs:
        shared = targets.join(run.ranks.frame, on=keys, how="semi")
        if len(shared):
            targets = shared
        elif refuses:
            labels = f"{run_label(run.run)} and {run_label(first.run)}"
            raise InputError(f"runs {labels}: have no target in common")
        else:
            left_out.add(run.name)
    if left_out:
        logger.warning("left out, for want of common targets: %s", ", ".join(sorted(left_out)))
    return [run.among(targets) for run in runs if run.name not in left_out]


def _usual_metrics(runs: Sequence[EvaluatedRun]) -> tuple[str, ...]:
    usual = ("recall_at_10", "ndcg_at_10")
    lengths = {run.lists.protocol.length if run.lists else None for run in runs}
    if len(lengths) > 1 or None in lengths:
        return usual
    (n,) = lengths
    return (*usual, f"next_recall_at_{n}", f"next_ndcg_at_{n}")


def _row(
    model: ModelRuns,
    intervals: Mapping[str, Interval],
    differences: Mapping[str, PairedResult],
    metrics: Sequence[str],
) -> ComparedRun:
    run = model.first.run
    costs = [seed.run.data.metrics for seed in model.runs]
    spreads = {metric: model.spread(metric) for metric in metrics}
    return ComparedRun(
        name=model.first.name,
        run_id=run.info.run_id,
        model=model.first.model,
        trained_on=run.data.tags.get("trained_on", "unknown"),
        seeds=len(model.runs),
        metrics={m: intervals[m].mean if m in intervals else model.mean(m) for m in metrics},
        intervals=intervals,
        spreads={metric: spread for metric, spread in spreads.items() if spread is not None},
        differences=differences,
        costs={
            name: float(np.mean([logged[name] for logged in costs]))
            for name in COSTS
            if all(name in logged for logged in costs)
        },
    )


def _differences(
    models: Sequence[ModelRuns], metrics: Sequence[str], method: Method, across_protocols: bool
) -> list[dict[str, PairedResult]]:
    """Test every row against the first; the rows are one family for Holm's correction."""
    reference, *others = models
    differences: list[dict[str, PairedResult]] = [{}]
    for other in others:
        if not across_protocols:
            _refuse_other_tags(reference.first.run, other.first.run)
        elif not other.first.shares_targets(reference.first):
            differences.append({})
            continue
        try:
            refuse_different(
                other.first.ranks, reference.first.ranks, across_protocols=across_protocols
            )
            differences.append(
                {
                    name: other.test(
                        reference, name, method=method, across_protocols=across_protocols
                    )
                    for name in metrics
                }
            )
        except InputError as error:
            labels = f"{run_label(other.first.run)} and {run_label(reference.first.run)}"
            raise InputError(f"runs {labels}: {error}") from error
    tested = [tests for tests in differences if tests]
    for name in metrics:
        corrected = holm([tests[name].p_value for tests in tested])
        for tests, p_value in zip(tested, corrected, strict=True):
            tests[name] = tests[name]._replace(p_value=p_value)
    return differences


def _refuse_other_tags(a: Run, b: Run) -> None:
    """Refuse runs whose tags of data or protocol differ; tests compare the tables themselves."""
    for tag in differing_tags(a, b):
        ours, theirs = ((run.data.tags.get(tag) or "none")[:40] for run in (a, b))
        raise InputError(
            f"runs {run_label(a)} and {run_label(b)} differ in {tag}: {ours!r} and {theirs!r}; "
            "compare models evaluated under one protocol, or allow several (--across-protocols)"
        )


def _in_words(evaluated: EvaluatedRun) -> str:
    protocol = evaluated.ranks.protocol
    split = evaluated.run.data.tags.get("protocol.split", "unknown split")
    seen = {"filter": "seen items excluded", "allow": "seen items included"}[protocol.seen]
    ties = {"against_target": "against the target", "item_id": "by item id"}[protocol.ties]
    candidates = candidates_in_words(protocol.candidates, protocol.num_items)
    text = f"{split}, {protocol.part} part, ranked over {candidates}, {seen}, ties {ties}, "
    text += f"{protocol.dropped:,} targets outside the catalogue dropped"
    if protocol.without_history:
        text += f", {protocol.without_history:,} without a history dropped"
    return text
