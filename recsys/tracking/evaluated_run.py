"""A run of an MLflow store with the tables that its metrics are computed from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl
from mlflow.entities import Run

from recsys.config import WITH_COUNTS
from recsys.errors import InputError
from recsys.evaluation.metrics import find_metric
from recsys.evaluation.tables import NextListTable, RankTable, TopKTable


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """A run with the tables that its metrics are computed from."""

    run: Run
    ranks: RankTable
    lists: NextListTable | None = None
    """None if the run has no lists of next purchases, or they were not fetched."""
    top_k: TopKTable | None = None
    """None if the run has no top-k table, or it was not fetched."""
    model_alone: bool = False
    """Are these the ranks of its model without the count ensemble?"""

    @property
    def name(self) -> str:
        """The name of the run."""
        name: str = self.run.info.run_name
        return f"{name}, model alone" if self.model_alone else name

    @property
    def model(self) -> str:
        """The family of the model or baseline."""
        family: str = self.run.data.tags.get("model", "unknown")
        return family.removesuffix(WITH_COUNTS) if self.model_alone else family

    def table(self, metric: str) -> RankTable | NextListTable:
        """Return the table that has a value of the metric for every user.

        Raises:
            InputError: the metric is one of lists of next purchases, and the run has none.
        """
        if find_metric(metric).source == "ranks":
            return self.ranks
        if self.lists is None:
            raise InputError(
                f"run {run_label(self.run)}: has no lists of next purchases, "
                "hence no metrics next_..."
            )
        return self.lists

    def value(self, metric: str) -> float:
        """Return a metric of all users.

        Raises:
            InputError: the run has neither the table of the metric nor logged it.
        """
        source = find_metric(metric).source
        if source == "top_k":
            if self.top_k is None:
                raise InputError(f"run {run_label(self.run)}: has no top-k table for {metric}")
            return self.top_k.value(metric)
        if source == "logged":
            logged: dict[str, float] = self.run.data.metrics
            name = f"{self.ranks.protocol.part}/{metric}"
            if name not in logged:
                raise InputError(f"run {run_label(self.run)}: did not log {name}")
            return logged[name]
        return float(self.table(metric).values(metric).mean())

    def among(self, targets: pl.DataFrame) -> EvaluatedRun:
        """Return the run with the ranks and best items of some targets alone.

        Args:
            targets: the columns user, history_length and target.
        """
        top_k, lists_of = self.top_k, ["user", "history_length"]
        if top_k is not None:
            frame = top_k.frame.join(targets, on=lists_of, how="semi", maintain_order="left")
            top_k = replace(top_k, frame=frame)
        frame = self.ranks.frame.join(
            targets, on=targets.columns, how="semi", maintain_order="left"
        )
        return replace(self, ranks=replace(self.ranks, frame=frame), top_k=top_k)

    def shares_targets(self, other: EvaluatedRun) -> bool:
        """Do both rank the same targets of the same dataset, under any protocol?"""
        mine, theirs = (one.run.data.tags.get("dataset_fingerprint") for one in (self, other))
        columns = ["user", "target"]
        return mine == theirs and self.ranks.frame[columns].equals(other.ranks.frame[columns])


def run_label(run: Run) -> str:
    """Return the name of a run and the beginning of its id, as messages show it."""
    return f"{run.info.run_name} ({run.info.run_id[:8]})"
