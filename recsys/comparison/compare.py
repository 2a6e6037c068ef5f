"""Runs side by side: figures and paired tests, all from the tables of ranks and lists they keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from recsys.comparison.effect import Effect, paired_effect
from recsys.comparison.seeds import ModelRuns, pool_seeds
from recsys.comparison.significance import Method, PairedResult, holm
from recsys.config import TrackingConfig
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.candidates import candidates_in_words
from recsys.evaluation.metrics.intervals import Interval
from recsys.evaluation.metrics.ranks import metric_values
from recsys.tracking.runs import (
    EvaluatedRun,
    Run,
    differing_tags,
    find_runs,
    is_of_lists,
    run_label,
)

_FITTED_ON = {"train": "the training part alone", "train, valid": "all but the test targets"}
"""The parts of the split that a run was fitted on, in words."""

_COSTS = ("fit_seconds", "peak_memory_mib", "parameters")
"""What a run may have logged of its costs."""
_COLUMNS = (
    *("", "_low", "_high", "_difference", "_difference_low", "_difference_high", "_p_value"),
    *("_d_z", "_users_needed", "_spread"),
)
"""What follows a metric's name in the columns of a frame."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One line of a comparison."""

    name: str
    run_id: str
    model: str
    trained_on: str
    """The parts of the split it was fitted on: ``train``, or ``train, valid`` after a refit."""
    seeds: int
    """How many runs it is the mean of: those that differ in their seed alone, or one."""
    figures: Mapping[str, Interval]
    """Mean and 95% interval of each metric, by its name."""
    spreads: Mapping[str, float]
    """Standard deviation of the seeds' own means, of each metric; empty of a single run."""
    differences: Mapping[str, PairedResult]
    """Of each metric to the first run's; the p-values are Holm's. Empty for the first run."""
    effects: Mapping[str, Effect]
    """How large these differences are, and the users it would take to see them."""
    costs: Mapping[str, float]
    """Those of fit_seconds, peak_memory_mib and parameters that the run logged; means of seeds."""

    @property
    def fitted_on(self) -> str:
        """What it was fitted on, in words."""
        return _FITTED_ON.get(self.trained_on, self.trained_on)


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
    models: tuple[ModelRuns, ...]
    """Of each row the runs, with the tables that its figures were computed from."""

    def frame(self) -> pl.DataFrame:
        """One row per run, one flat column per number; null where there is none.

        Columns: name, run_id, model, trained_on, seeds; for each metric ``M``: ``M, M_low,
        M_high, M_difference, M_difference_low, M_difference_high, M_p_value, M_d_z,
        M_users_needed, M_spread``;
        fit_seconds, peak_memory_mib, parameters.
        """
        rows: list[dict[str, object]] = []
        for row in self.rows:
            cells: dict[str, object] = {
                name: getattr(row, name)
                for name in ("name", "run_id", "model", "trained_on", "seeds")
            }
            for metric in self.metrics:
                numbers = [*row.figures[metric], *row.differences.get(metric, [None] * 4)]
                numbers += [*row.effects.get(metric, [None] * 2), row.spreads.get(metric)]
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
    across_protocols: bool = False,
    pooled: bool = False,
    method: Method = "randomisation",
) -> Comparison:
    """Put MLflow runs in one table, each with a paired test against the first.

    A run whose model has counts beside it has a second row, of the model alone.

    Metrics, intervals and tests are computed from the tables that the runs keep, not from logged
    figures.

    Args:
        runs: of the experiment ``tracking.experiment``: run ids, unambiguous beginnings of ids
            (four letters or more), or names, each meaning the newest finished run of that name. An
            empty list: the newest finished run of every name, names in the order of their first,
            of those that can be compared with the newest run of all.
        tracking: where the runs are.
        part: which targets, ``test`` or ``valid``.
        metrics: of the ranks those of `metric_values`; of the lists next_recall_at_n and the
            other figures of `list_figures`, n being their length. None: recall and NDCG at 10 and,
            where every run has lists, next_recall_at_n and next_ndcg_at_n. The table on a terminal
            shows the test of the last.
        across_protocols: put runs of different protocols into one table all the same, untested
            where their targets differ.
        pooled: runs that differ in seed and name alone are one row, named after the first of them.
        method: of the p-values: the randomisation test, or ``t`` for the paired t-test.

    Raises:
        InputError: the store, the experiment or a run is not there, a run has no rank table or not
            the lists that a metric is of, there is no such metric, or two runs differ in dataset,
            protocol or targets and ``across_protocols`` is not asked for.
    """
    if metrics is not None and not metrics:
        raise InputError("metrics: name at least one")
    for metric in metrics or ():
        if not is_of_lists(metric):
            metric_values(np.array([1]), metric)  # refuses unknown ones before the work
    listed = metrics is None or any(map(is_of_lists, metrics))
    evaluated = find_runs(runs, tracking, part, listed, across_protocols)
    metrics = _usual_metrics(evaluated) if metrics is None else metrics
    models = pool_seeds(evaluated) if pooled else [ModelRuns((one,)) for one in evaluated]
    figures = [model.figures(metrics) for model in models]
    differences = _differences(models, metrics, method, across_protocols)
    effects = [
        {
            name: paired_effect(model.values(name), models[0].values(name))
            for name in found
            if len(np.unique(model.first.ranks.users)) > 1  # an effect of one user has no size
        }
        for model, found in zip(models, differences, strict=True)
    ]
    rows = map(_row, models, figures, differences, effects)
    ranks = evaluated[0].ranks
    datasets = dict.fromkeys(one.run.data.tags.get("dataset", "unknown") for one in evaluated)
    protocol = " | ".join(dict.fromkeys(map(_in_words, evaluated)))
    return Comparison(
        rows=tuple(rows),
        metrics=tuple(metrics),
        dataset=" | ".join(datasets),
        protocol=protocol,
        users=len(np.unique(ranks.users)),
        targets=len(ranks.frame),
        models=tuple(models),
    )


def _row(
    model: ModelRuns,
    figures: Mapping[str, Interval],
    differences: Mapping[str, PairedResult],
    effects: Mapping[str, Effect],
) -> ComparedRun:
    run = model.first.run
    costs = [one.run.data.metrics for one in model.runs]
    spreads = {metric: model.spread(metric) for metric in figures}
    return ComparedRun(
        name=model.first.name,
        run_id=run.info.run_id,
        model=model.first.model,
        trained_on=run.data.tags.get("trained_on", "unknown"),
        seeds=len(model.runs),
        figures=figures,
        spreads={metric: spread for metric, spread in spreads.items() if spread is not None},
        differences=differences,
        effects=effects,
        costs={
            name: float(np.mean([each[name] for each in costs]))
            for name in _COSTS
            if all(name in each for each in costs)
        },
    )


def _usual_metrics(evaluated: Sequence[EvaluatedRun]) -> tuple[str, ...]:
    usual = ("recall_at_10", "ndcg_at_10")
    lengths = {one.lists.protocol.length if one.lists else None for one in evaluated}
    if len(lengths) > 1 or None in lengths:
        return usual
    (n,) = lengths
    return (*usual, f"next_recall_at_{n}", f"next_ndcg_at_{n}")


def _differences(
    models: Sequence[ModelRuns], metrics: Sequence[str], method: Method, across_protocols: bool
) -> list[dict[str, PairedResult]]:
    """Of every row to the first; per metric, the rows are one family for Holm's correction."""
    first, *others = models
    differences: list[dict[str, PairedResult]] = []
    for other in others:
        if not across_protocols:
            _refuse_other_tags(first.first.run, other.first.run)
        elif not other.first.shares_targets(first.first):
            differences.append({})
            continue
        try:
            found = {
                name: other.test(first, name, method=method, across_protocols=across_protocols)
                for name in metrics
            }
        except InputError as error:
            labels = f"{run_label(other.first.run)} and {run_label(first.first.run)}"
            raise InputError(f"runs {labels}: {error}") from error
        differences.append(found)
    tested = [found for found in differences if found]
    for name in metrics:
        corrected = holm([found[name].p_value for found in tested])
        for found, p_value in zip(tested, corrected, strict=True):
            found[name] = found[name]._replace(p_value=p_value)
    return [{}, *differences]


def _refuse_other_tags(a: Run, b: Run) -> None:
    """Data and protocol as tagged; the paired test compares the rank tables themselves."""
    for tag in differing_tags(a, b):
        ours, theirs = ((run.data.tags.get(tag) or "none")[:40] for run in (a, b))
        raise InputError(
            f"runs {run_label(a)} and {run_label(b)} differ in {tag}: {ours!r} and {theirs!r}; "
            "compare models evaluated alike, or ask for a table across protocols"
        )


def _in_words(evaluated: EvaluatedRun) -> str:
    protocol = evaluated.ranks.protocol
    split = evaluated.run.data.tags.get("protocol.split", "unknown split")
    seen = {"filter": "seen items left out", "allow": "seen items ranked too"}[protocol.seen]
    ties = {"against_target": "against the target", "item_id": "by item id"}[protocol.ties]
    candidates = candidates_in_words(protocol.candidates, protocol.num_items)
    return (
        f"{split}, {protocol.part} part, ranked over {candidates}, {seen}, "
        f"ties {ties}, {protocol.dropped:,} targets outside the catalogue dropped"
        + (
            f", {protocol.without_history:,} without a history dropped"
            if protocol.without_history
            else ""
        )
    )
