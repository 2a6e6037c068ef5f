"""Several seeds of one model as one row of a comparison."""

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
    refuse_different,
)
from recsys.evaluation.metrics.intervals import Interval, bootstrap_means
from recsys.evaluation.metrics.registry import find_metric
from recsys.tracking.evaluated_run import EvaluatedRun


@dataclass(frozen=True, slots=True)
class ModelRuns:
    """A run, or several seeds of it: a user's value is then the mean over the seeds.

    A user's values under two seeds are not independent observations: pooling makes them one, so
    more seeds do not narrow the interval over users.
    """

    runs: tuple[EvaluatedRun, ...]
    """One per seed, at least one."""

    @property
    def first(self) -> EvaluatedRun:
        """The run that represents all of them: they share its protocol and its targets."""
        return self.runs[0]

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return one metric of every user [U].

        Raises:
            InputError: there is no such metric, or the seeds do not share targets and protocol.
        """
        tables = [run.table(metric) for run in self.runs]
        for other in tables[1:]:
            refuse_different(tables[0], other)
        values: NDArray[np.float64] = np.mean([table.values(metric) for table in tables], axis=0)
        return values

    def where(self, column: str, segment: object) -> ModelRuns:
        """Return the same runs on the targets of one segment; see `recsys.evaluation.segments`."""
        return ModelRuns(
            tuple(
                replace(
                    run,
                    ranks=replace(
                        run.ranks,
                        frame=run.ranks.frame.filter(pl.col(column).eq_missing(pl.lit(segment))),
                    ),
                )
                for run in self.runs
            )
        )

    def mean(self, metric: str) -> float:
        """Return a metric of all users, averaged over the seeds."""
        return float(np.mean([run.value(metric) for run in self.runs]))

    def intervals(self, metrics: Sequence[str]) -> dict[str, Interval]:
        """Return means over the users with intervals over users, the range for other users.

        Those of a single run are to the last digit what it logged. Metrics without a value per user
        have no interval, and are skipped.
        """
        metrics = [metric for metric in metrics if find_metric(metric).per_user]
        if len(self.runs) == 1:
            return _intervals_of_run(self.first, metrics)
        return {metric: _interval(self.values(metric)) for metric in metrics}

    def spread(self, metric: str) -> float | None:
        """Return the standard deviation of the seeds' own means; None for a single run.

        The mean of n seeds has this over the root of n as its standard error.
        """
        if len(self.runs) == 1:
            return None
        return float(np.std([run.value(metric) for run in self.runs], ddof=1))

    def test(
        self,
        other: ModelRuns,
        metric: str,
        *,
        method: Method = "randomisation",
        across_protocols: bool = False,
    ) -> PairedResult:
        """Test how much better these are than the others, over users; see `paired_test`."""
        mine, theirs = self.first.table(metric), other.first.table(metric)
        refuse_different(mine, theirs, across_protocols=across_protocols)
        return paired_difference(self.values(metric), other.values(metric), method=method)


def pool_seeds(runs: Sequence[EvaluatedRun]) -> list[ModelRuns]:
    """Group runs whose parameters differ only in seed and name, in the order of the first of each.

    The later of two runs of one seed counts; an interrupted run is a group of its own.
    """
    groups: dict[tuple[object, ...], dict[str, EvaluatedRun]] = {}
    for run in runs:
        parameters, tags = dict(run.run.data.params), run.run.data.tags
        seed = parameters.pop("seed", run.run.info.run_id)
        parameters.pop("name", None)
        facts = ("model", "dataset_fingerprint", "protocol.fingerprint", "trained_on")
        interrupted = "interrupted" in tags
        key = (*map(tags.get, facts), interrupted, run.model_alone, *sorted(parameters.items()))
        groups.setdefault(key, {})[seed] = run
    return [ModelRuns(tuple(group.values())) for group in groups.values()]


def _intervals_of_run(run: EvaluatedRun, metrics: Sequence[str]) -> dict[str, Interval]:
    """Compute the intervals of one run exactly as the run did when it logged them."""
    ranked = [metric for metric in metrics if run.table(metric) is run.ranks]
    intervals = run.ranks.summary(ranked) if ranked else {}
    for metric in metrics:
        if metric not in intervals:
            run.table(metric).values(metric)  # refuses metrics that the lists do not have
    if run.lists is not None and len(ranked) < len(metrics):
        intervals |= run.lists.summary()
    return {metric: intervals[metric] for metric in metrics}


def _interval(values: NDArray[np.float64]) -> Interval:
    distinct, counts = np.unique(values, return_counts=True)
    (interval,) = bootstrap_means(distinct[None], counts, np.random.default_rng(0))
    return interval
