"""The leakage audit: properties of a dataset and its split that distort metrics.

On the leak of all leave-one-out splits see Ji et al. 2023 (arXiv:2010.11060).
"""

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import polars as pl

from recsys.config.data import LeaveLastBasketOut, LeaveLastOut, UserHoldout
from recsys.data.histories import PAD, Int64s
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import user_blocks

NOTABLE, FEW_TIMES = 0.01, 10
"""The share above which a finding is a warning, if a few cases are harmless; the number of distinct
times below which few_times is one, however short the log is."""
EXACT = 10_000_000
"""The number of times up to which distinct ones are counted, not estimated to about 1%."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, positive or not."""

    name: str
    severity: Literal["warn", "info"]
    """warn: it can distort metrics, and something can be done; info: worth knowing."""
    count: int
    share: float
    """The share of cases, 0 to 1, among those named in the sentence; 0 if there are none."""
    sentence: str


def audit(
    dataset: PreparedDataset, seen: Literal["filter", "allow"] = "filter"
) -> tuple[Finding, ...]:
    """Return all findings in a fixed order, including those without cases.

    ``seen`` says whether items of a user's history are excluded from the ranking.
    """
    config, times = dataset.config, dataset.timestamps
    train, valid, test = np.diff(dataset.cuts.sum(axis=0, dtype=np.int64), prepend=0).tolist()
    users, every, ends = dataset.target_positions("test")
    inside = dataset.items[every] != PAD
    targets, starts, ends = every[inside], dataset.offsets[users[inside]], ends[inside]
    first = times[every].min() if len(every) else np.inf
    later, repeated = _count_cases(dataset, targets, ends, first)

    inherent = isinstance(config.split, LeaveLastOut | LeaveLastBasketOut | UserHoldout)
    future = "training interactions are later than the test target of some user"
    if inherent:
        future += f": {config.split.kind} does not split at a common time, global_time does"
    minimums = "min_item_interactions", "min_user_interactions"
    rules = [f"{name}={least}" for name in minimums if (least := getattr(config, name)) > 1]
    rules += ["k_core"] * (config.k_core and bool(rules))
    filters = ", ".join(rules + ["duplicates=last"] * (config.duplicates == "last"))
    tied = (ends > starts) & (times[ends - 1] == times[targets])
    order, position = "the order of the rows", dataset.manifest.columns.position
    if position is not None:
        order = f"column {position!r}, then {order}"
    ties = (
        "test targets have the same time as the last interaction of their history: which of the "
        f"two is the target depends only on {order}"
    )
    if isinstance(config.split, LeaveLastOut):
        ties += "; --set data.split=leave_last_basket_out holds out all of the last time"
    repeats = "test targets are in their history already"
    if seen == "filter":
        repeats += (
            ": with seen: filter they are never ranked; if they are real, evaluate with seen: "
            "allow; if not, prepare with --set data.duplicates=first"
        )
    counted = pl.Series(np.asarray(times))
    is_short = len(times) <= EXACT
    distinct = counted.n_unique() if is_short else cast("int", counted.approx_n_unique())
    few = max(FEW_TIMES, NOTABLE * len(times))

    def finding(name: str, count: int, total: int, sentence: str, most: float) -> Finding:
        """Return a finding, a warning if its share is above ``most``."""
        share = count / total if total else 0.0
        return Finding(name, "warn" if share > most else "info", count, share, sentence)

    harmless = 1.0
    return (
        finding("future_training", later, train, future, harmless if inherent else 0),
        finding(
            "filters_on_test_rows",
            test if filters else 0,
            train + valid + test,
            "interactions of the test part affected the training part"
            + (f" through {filters}: counted on all rows" if filters else ""),
            0,
        ),
        finding(
            "duplicates_across_cuts",
            dataset.copies[1],
            valid + test,
            "held-out interactions have a duplicate of the same user, item and time in an earlier "
            "part: --set data.duplicates=drop_exact removes it",
            0,
        ),
        finding("ties_at_cut", int(tied.sum()), len(tied), ties, NOTABLE),
        Finding(
            "few_times",
            "warn" if distinct < few else "info",
            distinct,
            distinct / len(times),
            "distinct times, as a share of the interactions: if it is small, times are dates or "
            "positions and hardly order the interactions",
        ),
        finding(
            "repeat_targets",
            repeated,
            len(targets),
            repeats,
            NOTABLE if seen == "filter" else harmless,
        ),
        finding(
            "outside_catalogue",
            len(every) - len(targets),
            len(every),
            "test targets are items that are in no earlier part: no metric counts them",
            NOTABLE,
        ),
    )


def _count_cases(
    dataset: PreparedDataset, targets: Int64s, ends: Int64s, first: float
) -> tuple[int, int]:
    """Count training interactions later than the first target, and targets in their history."""
    offsets, later, repeated = dataset.offsets, 0, 0
    for low, high in user_blocks(offsets):
        start, end = int(offsets[low]), int(offsets[high])
        users = np.repeat(np.arange(low, high), np.diff(offsets[low : high + 1]))
        trains = np.arange(start, end) < offsets[users] + dataset.cuts[users, 0]
        later += int(np.count_nonzero(dataset.timestamps[start:end][trains] > first))
        pair = users * (dataset.num_items + 1) + dataset.items[start:end]
        pairs = pl.DataFrame({"pair": pair}).with_row_index()
        firsts = pairs.select(pl.col("index").min().over("pair")).to_series().to_numpy()
        rows = slice(*np.searchsorted(targets, (start, end)))
        repeated += int(np.count_nonzero(firsts[targets[rows] - start] < ends[rows] - start))
    return later, repeated
