"""A model or a baseline over the folds of a backtest: a run for each, and all taken together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recsys.config import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.tables.rank import RankTable, pool_folds
from recsys.experiments.baseline import fit_baseline
from recsys.experiments.fit import fit
from recsys.tracking.runs import find_runs

MODEL = "model"
"""What stands for the experiment's own model among the names of baselines."""


@dataclass(frozen=True, slots=True)
class Backtested:
    """What one model or baseline did."""

    name: str
    """`MODEL`, or that of the baseline."""
    runs: tuple[str, ...]
    """Ids of the MLflow runs, one per fold."""
    folds: tuple[RankTable, ...]
    """The test ranks of each."""
    pooled: RankTable
    """Those of all folds."""


def backtest(name: str, experiment: Experiment, datasets: Sequence[PreparedDataset]) -> Backtested:
    """Fit anew on each fold, and evaluate on its test part.

    Args:
        name: `MODEL` or a baseline.
        experiment: fold i is called NAME-fold-i, and its outputs are in runs/NAME-fold-i.
        datasets: of the folds; see `recsys.data.folds`.

    Raises:
        InputError: a fold has nothing to train on or to evaluate, or the store cannot be used.
    """
    runs = []
    for number, dataset in enumerate(datasets, 1):
        fold = experiment.model_copy(update={"name": f"{experiment.name}-fold-{number}"})
        if name == MODEL:
            runs.append(fit(fold, dataset).run_id)
        else:
            runs.append(fit_baseline(name, fold, dataset))
    evaluated = find_runs(runs, experiment.tracking, "test")
    tables = tuple(run.ranks for run in evaluated)
    return Backtested(
        name, tuple(runs), tables, pool_folds(tables, [dataset.user_ids for dataset in datasets])
    )
