"""The leakage audit: properties of a dataset and its split that distort metrics.

The leak of all leave-one-out splits is described by Ji et al. 2023, "A critical study on data
leakage in recommender system offline evaluation" (arXiv:2010.11060).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recsys.config import LeaveLastBasketOut, LeaveLastOut, UserHoldout
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.data.targets import TargetPositions

AUDIT = "audit.json"
"""The file in which runs save the findings."""

NOTABLE = 0.01
"""The share above which a finding is a warning, if a few cases are harmless."""

FEW_TIMES = 10
"""Fewer distinct times than this are a warning, however short the log is."""

_TRAIN, _TEST = 0, 2


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, positive or not."""

    name: str
    severity: Literal["warn", "info"]
    """warn: it can distort metrics, and something can be done; info: worth knowing."""
    count: int
    """The number of cases."""
    share: float
    """The share of cases, 0 to 1, among those named in the sentence; 0 if there are none."""
    sentence: str
    """What is counted, among what, and what it means."""


def audit(
    dataset: PreparedDataset, seen: Literal["filter", "allow"] = "filter"
) -> tuple[Finding, ...]:
    """Check for leaks into the test part; equal datasets have equal findings.

    Args:
        dataset: the dataset to check.
        seen: whether items of a user's history are excluded from the ranking.

    Returns:
        All findings in a fixed order, including those without cases.
    """
    rows = _AuditedRows(dataset)
    return (
        _future_training(rows),
        _filters_on_test_rows(rows),
        _duplicates_across_cuts(rows),
        _ties_at_cut(rows),
        _few_times(rows),
        _repeat_targets(rows, seen),
        _outside_catalogue(rows),
        _without_history(rows),
        _new_users(rows),
        _new_items(rows),
        _dropped_rows(rows),
    )


@dataclass(frozen=True)
class _AuditedRows:
    """The N interactions of a dataset, with facts that several findings need."""

    dataset: PreparedDataset

    @cached_property
    def users(self) -> NDArray[np.int64]:
        """Shape [N]: the row of each interaction's user."""
        return np.repeat(np.arange(self.dataset.num_users), np.diff(self.dataset.offsets))

    @cached_property
    def parts(self) -> NDArray[np.int64]:
        """Shape [N]: the part of each interaction, 0 to 2 for training, validation and test."""
        position = np.arange(len(self.users)) - self.dataset.offsets[self.users]
        valid, test = self.dataset.cuts[self.users, 0], self.dataset.cuts[self.users, 1]
        parts: NDArray[np.int64] = (position >= valid).astype(np.int64) + (position >= test)
        return parts

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Shape [N]: a number that identifies each pair of user and item token."""
        numbers: NDArray[np.int64] = self.users * (self.dataset.num_items + 1) + self.dataset.items
        return numbers

    @cached_property
    def chosen(self) -> TargetPositions:
        """The test targets of the split."""
        return self.dataset.target_positions("test")

    @cached_property
    def targets(self) -> TargetPositions:
        """The test targets inside the catalogue."""
        return self.chosen[self.dataset.items[self.chosen.targets] != PAD]


def _finding(
    name: str, count: int, total: int, sentence: str, warn_above: float | None = None
) -> Finding:
    share = count / total if total else 0.0
    warns = warn_above is not None and share > warn_above
    return Finding(name, "warn" if warns else "info", count, share, sentence)


def _future_training(rows: _AuditedRows) -> Finding:
    times = rows.dataset.timestamps
    training = np.sort(times[rows.parts == _TRAIN])
    targets = times[rows.chosen.targets]
    later = len(training) - np.searchsorted(training, targets, side="right")
    sentence = "training interactions are later than the test target of some user"
    if later.any():
        sentence += f", and {later.mean() / len(training):.0%} are later than the average one"
    split = rows.dataset.config.split
    inherent = isinstance(split, LeaveLastOut | LeaveLastBasketOut | UserHoldout)
    if inherent:
        sentence += f": {split.kind} does not split at a common time, global_time does"
    limit = None if inherent else 0
    return _finding("future_training", int(later.max(initial=0)), len(training), sentence, limit)


def _filters_on_test_rows(rows: _AuditedRows) -> Finding:
    config = rows.dataset.config
    minimums = ("min_item_interactions", "min_user_interactions")
    filters = [f"{name}={least}" for name in minimums if (least := getattr(config, name)) > 1]
    if filters and config.k_core:
        filters.append("k_core")
    if config.duplicates == "last":
        filters.append("duplicates=last")
    test = int((rows.parts == _TEST).sum())
    sentence = "interactions of the test part affected the training part through "
    sentence += f"{', '.join(filters)}: counted on {rows.dataset.manifest.filtered_on}"
    if not filters:
        test, sentence = 0, "interactions of the test part affected the training part"
    return _finding("filters_on_test_rows", test, len(rows.users), sentence, warn_above=0)


def _duplicates_across_cuts(rows: _AuditedRows) -> Finding:
    """Duplicates have the same time; items outside the catalogue are only in the test part."""
    times = rows.dataset.timestamps
    order = np.lexsort((rows.parts, times, rows.pairs))
    pairs, sorted_times, parts = rows.pairs[order], times[order], rows.parts[order]
    again = (pairs[1:] == pairs[:-1]) & (sorted_times[1:] == sorted_times[:-1])
    group = np.concatenate([[0], np.cumsum(~again)])
    first = np.flatnonzero(np.concatenate([[True], ~again]))
    duplicates = parts > parts[first[group]]
    held_out = int((rows.parts != _TRAIN).sum())
    sentence = (
        "held-out interactions have a duplicate of the same user, item and time in an earlier "
        "part: duplicates: drop_exact removes it"
    )
    return _finding(
        "duplicates_across_cuts", int(duplicates.sum()), held_out, sentence, warn_above=0
    )


def _ties_at_cut(rows: _AuditedRows) -> Finding:
    times, targets = rows.dataset.timestamps, rows.targets
    known = targets.ends > targets.starts
    ties = known & (times[targets.ends - 1] == times[targets.targets])
    sentence = (
        "test targets have the same time as the last interaction of their history: which of the "
        f"two is the target depends only on the order ({rows.dataset.manifest.ordered_by})"
    )
    return _finding("ties_at_cut", int(ties.sum()), len(ties), sentence, NOTABLE)


def _few_times(rows: _AuditedRows) -> Finding:
    times = len(np.unique(rows.dataset.timestamps))
    sentence = (
        "distinct times, as a share of the interactions: if it is small, times are dates or "
        "positions and hardly order the interactions"
    )
    share = times / len(rows.users)
    few = times < FEW_TIMES or share < NOTABLE
    return Finding("few_times", "warn" if few else "info", times, share, sentence)


def _repeat_targets(rows: _AuditedRows, seen: Literal["filter", "allow"]) -> Finding:
    _, first, pair = np.unique(rows.pairs, return_index=True, return_inverse=True)
    repeats = first[pair[rows.targets.targets]] < rows.targets.ends
    sentence = "test targets are in their history already"
    if seen == "filter":
        sentence += (
            ": with seen: filter they are never ranked; if they are real, evaluate with seen: "
            "allow; if not, prepare with duplicates: first"
        )
    return _finding(
        "repeat_targets",
        int(repeats.sum()),
        len(repeats),
        sentence,
        NOTABLE if seen == "filter" else None,
    )


def _outside_catalogue(rows: _AuditedRows) -> Finding:
    chosen = len(rows.chosen.targets)
    sentence = "test targets are items that are in no earlier part: no metric counts them"
    outside = chosen - len(rows.targets.targets)
    return _finding("outside_catalogue", outside, chosen, sentence, NOTABLE)


def _without_history(rows: _AuditedRows) -> Finding:
    known = np.concatenate([[0], np.cumsum(rows.dataset.items != PAD)])
    without = int((known[rows.targets.ends] == known[rows.targets.starts]).sum())
    sentence = "test targets have no history: no metric counts them"
    return _finding("without_history", without, len(rows.chosen.targets), sentence)


def _new_users(rows: _AuditedRows) -> Finding:
    tested = rows.dataset.cuts[:, 1] < rows.dataset.cuts[:, 2]
    new = tested & (rows.dataset.cuts[:, 0] == 0)
    sentence = "users with test interactions have none in training"
    return _finding("new_users", int(new.sum()), int(tested.sum()), sentence)


def _new_items(rows: _AuditedRows) -> Finding:
    items = rows.dataset.items
    known = np.zeros(rows.dataset.num_items + 1, dtype=np.bool_)
    known[items[rows.parts == _TRAIN]] = True
    known[PAD] = False
    test = items[rows.parts == _TEST]
    sentence = "test interactions are of items that are not in training"
    return _finding("new_items", int((~known[test]).sum()), len(test), sentence)


def _dropped_rows(rows: _AuditedRows) -> Finding:
    manifest = rows.dataset.manifest
    dropped = sum(manifest.dropped.values())
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in manifest.dropped.items())
    sentence = "rows of the source were dropped" + (f" ({reasons})" if reasons else "")
    return _finding("dropped_rows", dropped, manifest.counts["rows_read"], sentence)
