"""The leakage audit: what in a dataset and its split makes figures other than they seem.

The one that leave-one-out splits always have is described by Ji et al. 2023, "A critical study on
data leakage in recommender system offline evaluation" (arXiv:2010.11060).
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
"""The file that runs keep the findings in."""

NOTABLE = 0.01
"""The share from which cases are warned of where a few of them are no leak yet."""

FEW_TIMES = 10
"""Fewer distinct times than this are warned of, however short the log."""

_TRAIN, _TEST = 0, 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the audit looks for, found or not."""

    name: str
    severity: Literal["warn", "info"]
    """warn: figures on this split are to be read with it in mind; info: good to know."""
    count: int
    share: float
    """0 to 1, of what the sentence says; 0 where there is none of that."""
    sentence: str
    """What is counted, of what, and what it means."""


def audit(
    dataset: PreparedDataset, seen: Literal["filter", "allow"] = "filter"
) -> tuple[Finding, ...]:
    """Look for leaks into the test part; equal datasets give equal findings.

    Args:
        dataset: its training, validation and test parts.
        seen: whether items of a user's history will be left out of the ranking.

    Returns:
        Every finding, those with nothing found too, in a fixed order.
    """
    rows = _Rows(dataset)
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
class _Rows:
    """The N interactions of a dataset, and what several findings need of them."""

    dataset: PreparedDataset

    @cached_property
    def users(self) -> NDArray[np.int64]:
        """[N]."""
        return np.repeat(np.arange(self.dataset.num_users), np.diff(self.dataset.offsets))

    @cached_property
    def parts(self) -> NDArray[np.int64]:
        """Training, validation or test [N]."""
        place = np.arange(len(self.users)) - self.dataset.offsets[self.users]
        valid, test = self.dataset.cuts[self.users, 0], self.dataset.cuts[self.users, 1]
        parts: NDArray[np.int64] = (place >= valid).astype(np.int64) + (place >= test)
        return parts

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """One number for each user and item token [N]."""
        numbers: NDArray[np.int64] = self.users * (self.dataset.num_items + 1) + self.dataset.items
        return numbers

    @cached_property
    def chosen(self) -> TargetPositions:
        """The test targets that the split chooses."""
        return self.dataset.target_positions("test")

    @cached_property
    def targets(self) -> TargetPositions:
        """Those inside the catalogue."""
        return self.chosen[self.dataset.items[self.chosen.targets] != PAD]


def _finding(
    name: str, count: int, total: int, sentence: str, warn_above: float | None = None
) -> Finding:
    share = count / total if total else 0.0
    warns = warn_above is not None and share > warn_above
    return Finding(name, "warn" if warns else "info", count, share, sentence)


def _future_training(rows: _Rows) -> Finding:
    times = rows.dataset.timestamps
    training = np.sort(times[rows.parts == _TRAIN])
    targets = times[rows.chosen.targets]
    later = len(training) - np.searchsorted(training, targets, side="right")
    sentence = "training interactions are later than somebody's test target"
    if later.any():
        sentence += f", than the average one {later.mean() / len(training):.0%} of them"
    split = rows.dataset.config.split
    if isinstance(split, LeaveLastOut | LeaveLastBasketOut | UserHoldout):
        sentence += f": {split.kind} knows no common clock, global_time does"
    return _finding(
        "future_training", int(later.max(initial=0)), len(training), sentence, warn_above=0
    )


def _filters_on_test_rows(rows: _Rows) -> Finding:
    config = rows.dataset.config
    minimums = ("min_item_interactions", "min_user_interactions")
    filters = [f"{name}={least}" for name in minimums if (least := getattr(config, name)) > 1]
    if filters and config.k_core:
        filters.append("k_core")
    if config.duplicates == "last":
        filters.append("duplicates=last")
    test = int((rows.parts == _TEST).sum())
    sentence = "interactions are of the test part and decided, by " + ", ".join(filters)
    sentence += f", what is left to train on: counted on {rows.dataset.manifest.filtered_on}"
    if not filters:
        test, sentence = 0, "interactions of the test part decide what is left to train on"
    return _finding("filters_on_test_rows", test, len(rows.users), sentence, warn_above=0)


def _duplicates_across_cuts(rows: _Rows) -> Finding:
    """Twins tie in time; items outside the catalogue are in the test part alone and have none."""
    times = rows.dataset.timestamps
    order = np.lexsort((rows.parts, times, rows.pairs))
    pairs, sorted_times, parts = rows.pairs[order], times[order], rows.parts[order]
    again = (pairs[1:] == pairs[:-1]) & (sorted_times[1:] == sorted_times[:-1])
    group = np.concatenate([[0], np.cumsum(~again)])
    first = np.flatnonzero(np.concatenate([[True], ~again]))
    twins = parts > parts[first[group]]
    held_out = int((rows.parts != _TRAIN).sum())
    sentence = (
        "held-out interactions have a twin of the same user, item and time in an earlier part: "
        "duplicates: drop_exact takes it away"
    )
    return _finding("duplicates_across_cuts", int(twins.sum()), held_out, sentence, warn_above=0)


def _ties_at_cut(rows: _Rows) -> Finding:
    times, targets = rows.dataset.timestamps, rows.targets
    known = targets.ends > targets.starts
    ties = known & (times[targets.ends - 1] == times[targets.targets])
    sentence = (
        "test targets have the time of the last interaction of their history: which of the two is "
        f"the target rests on the order ({rows.dataset.manifest.ordered_by})"
    )
    return _finding("ties_at_cut", int(ties.sum()), len(ties), sentence, NOTABLE)


def _few_times(rows: _Rows) -> Finding:
    times = len(np.unique(rows.dataset.timestamps))
    sentence = (
        "distinct times, as a share of the interactions: where it is small, times are mere dates "
        "or positions, and say little of what came before what"
    )
    share = times / len(rows.users)
    few = times < FEW_TIMES or share < NOTABLE
    return Finding("few_times", "warn" if few else "info", times, share, sentence)


def _repeat_targets(rows: _Rows, seen: Literal["filter", "allow"]) -> Finding:
    _, first, pair = np.unique(rows.pairs, return_index=True, return_inverse=True)
    repeats = first[pair[rows.targets.targets]] < rows.targets.ends
    sentence = "test targets are in their history already"
    if seen == "filter":
        sentence += (
            ": seen: filter never finds them; if they are real evaluate with seen: allow, if not "
            "prepare with duplicates: first"
        )
    return _finding(
        "repeat_targets",
        int(repeats.sum()),
        len(repeats),
        sentence,
        NOTABLE if seen == "filter" else None,
    )


def _outside_catalogue(rows: _Rows) -> Finding:
    chosen = len(rows.chosen.targets)
    sentence = "test targets are items that no earlier part has: no figure counts them"
    outside = chosen - len(rows.targets.targets)
    return _finding("outside_catalogue", outside, chosen, sentence, NOTABLE)


def _without_history(rows: _Rows) -> Finding:
    known = np.concatenate([[0], np.cumsum(rows.dataset.items != PAD)])
    left_out = int((known[rows.targets.ends] == known[rows.targets.starts]).sum())
    sentence = "test targets have nothing known before them: no figure counts them"
    return _finding("without_history", left_out, len(rows.chosen.targets), sentence)


def _new_users(rows: _Rows) -> Finding:
    tested = rows.dataset.cuts[:, 1] < rows.dataset.cuts[:, 2]
    new = tested & (rows.dataset.cuts[:, 0] == 0)
    sentence = "users with test interactions have none in training"
    return _finding("new_users", int(new.sum()), int(tested.sum()), sentence)


def _new_items(rows: _Rows) -> Finding:
    items = rows.dataset.items
    known = np.zeros(rows.dataset.num_items + 1, dtype=np.bool_)
    known[items[rows.parts == _TRAIN]] = True
    known[PAD] = False
    test = items[rows.parts == _TEST]
    sentence = "test interactions are of items that training does not have"
    return _finding("new_items", int((~known[test]).sum()), len(test), sentence)


def _dropped_rows(rows: _Rows) -> Finding:
    manifest = rows.dataset.manifest
    dropped = sum(manifest.dropped.values())
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in manifest.dropped.items())
    sentence = "rows of the source were left out by data.drop" + (
        f" ({reasons})" if reasons else ""
    )
    return _finding("dropped_rows", dropped, dropped + manifest.counts["rows_read"], sentence)
