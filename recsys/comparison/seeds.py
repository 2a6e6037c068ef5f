"""Runs of one model that differ in their seed alone, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.comparison.significance import (
    Method,
    PairedResult,
    paired_difference,
    refuse_unlike,
)
from recsys.errors import InputError
from recsys.evaluation.metrics.intervals import Interval, bootstrap_means
from recsys.tracking.runs import EvaluatedRun, run_label


@dataclass(frozen=True, slots=True)
class ModelRuns:
    """A run, or several seeds of it. A user's value is then the mean over the seeds.

    A user's values under two seeds are no independent observations: pooling makes them one, so more
    seeds do not narrow the interval over users.
    """

    runs: tuple[EvaluatedRun, ...]
    """One per seed, at least one."""

    @property
    def first(self) -> EvaluatedRun:
        """What stands for all of them: its name, protocol and targets are those of the others."""
        return self.runs[0]

    def values(self, metric: str) -> NDArray[np.float64]:
        """One metric of every user [U].

        Raises:
            InputError: there is no such metric, or the seeds were not asked for the same targets
                under the same protocol.
        """
        tables = [run.table(metric) for run in self.runs]
        for other in tables[1:]:
            refuse_unlike(tables[0], other)
        values: NDArray[np.float64] = np.mean([table.values(metric) for table in tables], axis=0)
        return values

    def where(self, column: str, segment: object) -> ModelRuns:
        """The same runs on the targets of one segment; see `recsys.evaluation.segments`."""
        return ModelRuns(
            tuple(
                replace(
                    run,
                    ranks=replace(
                        run.ranks, frame=run.ranks.frame.filter(pl.col(column) == segment)
                    ),
                )
                for run in self.runs
            )
        )

    def figures(self, metrics: Sequence[str]) -> dict[str, Interval]:
        """Means over the users, with intervals over users: what other users would bring.

        Those of a single run are to the last digit what it logged.
        """
        if len(self.runs) == 1:
            return _logged(self.first, metrics)
        return {metric: _interval(self.values(metric)) for metric in metrics}

    def spread(self, metric: str) -> float | None:
        """Standard deviation of the seeds' own means: what another seed would bring; None of one.

        The figures of n seeds are a mean, whose own standard error is this over the root of n.
        """
        if len(self.runs) == 1:
            return None
        return float(np.std([run.table(metric).values(metric).mean() for run in self.runs], ddof=1))

    def test(
        self,
        other: ModelRuns,
        metric: str,
        *,
        method: Method = "randomisation",
        across_protocols: bool = False,
    ) -> PairedResult:
        """How much better these are than the others, over users; see `paired_test`."""
        mine, theirs = self.first.table(metric), other.first.table(metric)
        refuse_unlike(mine, theirs, across_protocols=across_protocols)
        return paired_difference(self.values(metric), other.values(metric), method=method)


def pool_seeds(runs: Sequence[EvaluatedRun]) -> list[ModelRuns]:
    """Runs whose parameters are equal but for seed and name together, in the order of the first.

    Of two runs of one seed the later one counts; a run that was cut short stands alone.
    """
    groups: dict[tuple[object, ...], dict[str, EvaluatedRun]] = {}
    for run in runs:
        parameters, tags = dict(run.run.data.params), run.run.data.tags
        seed = parameters.pop("seed", run.run.info.run_id)
        parameters.pop("name", None)
        facts = ("model", "dataset_fingerprint", "protocol.fingerprint", "trained_on")
        cut = "interrupted" in tags
        key = (*map(tags.get, facts), cut, run.alone, *sorted(parameters.items()))
        groups.setdefault(key, {})[seed] = run
    return [ModelRuns(tuple(group.values())) for group in groups.values()]


def _logged(run: EvaluatedRun, metrics: Sequence[str]) -> dict[str, Interval]:
    figures: dict[str, Interval] = {}
    if ranked := [metric for metric in metrics if run.table(metric) is run.ranks]:
        figures |= run.ranks.summary(ranked)
    if run.lists is not None and len(ranked) < len(metrics):
        figures |= (of_lists := run.lists.summary())
        for metric in metrics:
            if metric not in figures:
                raise InputError(
                    f"run {run_label(run.run)}: metric {metric!r}: must be one of "
                    + ", ".join(of_lists)
                )
    return {metric: figures[metric] for metric in metrics}


def _interval(values: NDArray[np.float64]) -> Interval:
    distinct, counts = np.unique(values, return_counts=True)
    (interval,) = bootstrap_means(distinct[None], counts, np.random.default_rng(0))
    return interval
