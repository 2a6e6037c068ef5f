"""Backtests of a model or a baseline: one run per fold, and the pooled ranks of all folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recsys.config import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.tables import RankTable, pool_folds
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.fit import fit
from recsys.progress import shown, stage
from recsys.tracking.runs import find_runs

MODEL = "model"
"""The name of the experiment's own model among the names of baselines."""


@dataclass(frozen=True, slots=True)
class Backtested:
    """The result of one model or baseline."""

    name: str
    """`MODEL` or the name of a baseline."""
    runs: tuple[str, ...]
    """Ids of the MLflow runs, one per fold."""
    folds: tuple[RankTable, ...]
    """The test ranks of each fold."""
    pooled: RankTable
    """The test ranks of all folds."""


def backtest(name: str, experiment: Experiment, datasets: Sequence[PreparedDataset]) -> Backtested:
    """Fit on each fold separately and evaluate on its test part.

    Args:
        name: `MODEL` or the name of a baseline.
        experiment: all settings; fold i is called NAME-fold-i and written to runs/NAME-fold-i.
        datasets: the datasets of the folds, whose data settings replace those of the experiment;
            see `recsys.data.splits.folds`.

    Raises:
        InputError: a fold has nothing to train on or to evaluate, or the store cannot be used.
    """
    runs = []
    with shown() as view, stage(f"backtest of {name}", len(datasets), view) as line:
        for number, dataset in enumerate(datasets, 1):
            line.say(f"fold {number} of {len(datasets)}")
            update = {"name": f"{experiment.name}-fold-{number}", "data": dataset.config}
            fold = experiment.model_copy(update=update)
            if name == MODEL:
                runs.append(fit(fold, dataset, progress=view).run_id)
            else:
                runs.append(fit_baseline(name, fold, dataset))
            line.advance()
    evaluated = find_runs(runs, experiment.tracking, "test")
    tables = tuple(run.ranks for run in evaluated)
    return Backtested(
        name, tuple(runs), tables, pool_folds(tables, [dataset.user_ids for dataset in datasets])
    )
