"""The learning curve of a training, and the error that it may end with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import polars as pl
from torch import Tensor

from recsys.evaluation.tables import RankTable, TableProtocol
from recsys.training.device import Precision

MONITOR = "epoch/valid_ndcg_at_10"
"""The metric that chooses the best epoch."""


class EarlyDecay(NamedTuple):
    """When patience was exhausted and the learning rate began to decay ahead of schedule."""

    epoch: int
    """Number of epochs completed by then."""
    step: int
    """Number of steps in those epochs."""


@dataclass
class Curve:
    """The learning curve: the metrics of each epoch and the weights of the best one."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each epoch: train/loss, costs as train/…, and, if it was validated, epoch/…"""
    early_decay: EarlyDecay | None = None
    """If None, the learning rate decays on schedule, if at all."""
    best_epoch: int | None = None
    """Number of the epoch with the best validation, from 1; 0 for a warm start."""
    best_weights: Mapping[str, Tensor] = field(default_factory=dict)
    best_ranks: RankTable | None = None
    """Ranks of the validation targets under those weights; None without validation."""
    precision: Precision | None = None
    """The precision that was settled on; None before the first step."""
    interrupted: bool = False
    """Whether Ctrl-C ended the training."""
    start: dict[str, float] = field(default_factory=dict)
    """Metrics of a warm start, which is epoch 0, where it may be the best; empty otherwise."""

    @property
    def best(self) -> float:
        """The best validation NDCG@10 so far; -1 before the first validation."""
        all_epochs = (self.start, *self.epochs)
        return max((epoch[MONITOR] for epoch in all_epochs if MONITOR in epoch), default=-1.0)

    def validated(self) -> tuple[int, RankTable]:
        """Return the best epoch and its ranks.

        Raises:
            ValueError: the training had no validation.
        """
        if self.best_epoch is None or self.best_ranks is None:
            raise ValueError("no epoch was validated")
        return self.best_epoch, self.best_ranks

    def plain(self) -> dict[str, Any]:
        """Return it as nested dictionaries and lists of tensors and plain values; see `parse`."""
        tree = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.best_ranks is not None:
            columns = {column.name: column.to_torch() for column in self.best_ranks.frame}
            protocol = asdict(self.best_ranks.protocol)
            tree["best_ranks"] = {"columns": columns, "protocol": protocol}
        return tree

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Curve:
        """Return the curve that `plain` returned."""
        curve = cls(**tree)
        if curve.early_decay is not None:
            curve.early_decay = EarlyDecay(*curve.early_decay)
        if (ranks := tree["best_ranks"]) is not None:
            columns = {name: column.numpy() for name, column in ranks["columns"].items()}
            curve.best_ranks = RankTable(pl.DataFrame(columns), TableProtocol(**ranks["protocol"]))
        return curve
