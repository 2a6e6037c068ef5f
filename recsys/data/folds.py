"""The folds of a backtest: one dataset each, without the interactions that come later."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from recsys.config import Backtest, DataConfig, GlobalTime, time_value
from recsys.data.sources import load_source
from recsys.data.splits import cut_time
from recsys.errors import InputError


def fold_configs(config: DataConfig) -> tuple[DataConfig, ...]:
    """Return the settings of each fold's dataset, the earliest first.

    Raises:
        InputError: the split is not a backtest, or the log cannot be read or cut.
    """
    split = config.split
    if not isinstance(split, Backtest):
        raise InputError(f"data.split: must be of kind backtest, not {split.kind}")
    times = np.empty(0, dtype=np.int64)
    if not split.cuts:
        log, _ = load_source(config.source, config)
        times = np.sort(log.frame.collect("polars").to_polars()["timestamp"].to_numpy())
    return tuple(config.model_copy(update={"split": fold}) for fold in folds(split, times))


def folds(backtest: Backtest, times: NDArray[np.int64]) -> tuple[GlobalTime, ...]:
    """Return the split of each fold: its test part ends where that of the next one begins.

    Args:
        backtest: the cuts, or the number of folds and the fraction of the log in each.
        times: shape [N]: the times of all interactions before any filter, ascending; not read if
            cuts are given.

    Raises:
        InputError: two folds begin at the same time.

    >>> for fold in folds(Backtest(folds=2, test_fraction=0.25), np.arange(100, 108)):
    ...     print(fold.test_from, fold.test_until)
    104 106
    106 None
    """
    rows = [backtest.test_fraction * len(times) * n for n in range(backtest.folds, 0, -1)]
    cuts = backtest.cuts or tuple(cut_time(times, max(1, round(count))) for count in rows)
    if any(time_value(late) <= time_value(early) for early, late in pairwise(cuts)):
        raise InputError(
            f"data.split: {backtest} begins two folds at the same time: the log has too few times"
        )
    return tuple(
        GlobalTime(
            test_from=begin,
            test_until=end,
            valid_fraction=backtest.valid_fraction,
            targets=backtest.targets,
            history=backtest.history,
        )
        for begin, end in zip(cuts, (*cuts[1:], None), strict=True)
    )
