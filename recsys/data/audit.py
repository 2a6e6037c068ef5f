"""The leakage audit: properties of a dataset and its split that distort metrics.

The leak of all leave-one-out splits is described by Ji et al. 2023, "A critical study on data
leakage in recommender system offline evaluation" (arXiv:2010.11060).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import polars as pl

from recsys.config import LeaveLastBasketOut, LeaveLastOut, UserHoldout
from recsys.data.audited_rows import AuditedBlock, AuditedRows, count_distinct
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset

AUDIT = "audit.json"
"""The file in which runs save the findings."""

NOTABLE = 0.01
"""The share above which a finding is a warning, if a few cases are harmless."""

FEW_TIMES = 10
"""Fewer distinct times than this are a warning, however short the log is."""

_DOMINANT_TIMES, _DOMINANT_SHARE = 10, 0.05
"""A user is suspicious with so many times the interactions of the next one, and this share."""
_TRAIN, _TEST = 0, 2
_SAMPLED_TARGETS, _SAMPLED_TRAINING = 100_000, 1_000_000


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


@lru_cache(maxsize=1)  # a run asks for each of its baselines, and for its page
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
    rows = AuditedRows(dataset)
    return (
        _future_training(rows),
        _filters_on_test_rows(rows),
        _duplicates_across_cuts(rows),
        _ties_at_cut(rows),
        _few_times(rows),
        _dominant_user(rows),
        _repeat_targets(rows, seen),
        _outside_catalogue(rows),
        _without_history(rows),
        _new_users(rows),
        _new_items(rows),
        _dropped_rows(rows),
    )


def warnings_in(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that are warnings."""
    return [one for one in findings if one.severity == "warn"]


def _finding(
    name: str, count: int, total: int, sentence: str, warn_above: float | None = None
) -> Finding:
    share = count / total if total else 0.0
    warns = warn_above is not None and share > warn_above
    return Finding(name, "warn" if warns else "info", count, share, sentence)


def _future_training(rows: AuditedRows) -> Finding:
    """Count the training interactions after the earliest target, and after the average one."""
    training = rows.sizes[_TRAIN]
    targets = rows.dataset.timestamps[rows.chosen.targets]
    first = int(targets.min(initial=np.iinfo(np.int64).max))
    # The average target needs no more than samples: their standard error is below 0.2%.
    sample = np.sort(targets[:: -(-len(targets) // _SAMPLED_TARGETS) or 1])
    every = -(-training // _SAMPLED_TRAINING) or 1
    chance = np.random.default_rng(0)
    later, after_sampled, looked_up = 0, 0, 0
    for block in rows.blocks():
        times = block.times[block.parts == _TRAIN]
        later += int(np.count_nonzero(times > first))
        if every > 1:  # every nth would favour some positions of histories of like length
            times = times[chance.integers(len(times), size=len(times) // every)]
        after_sampled += int(np.searchsorted(sample, times).sum())
        looked_up += len(times)
    sentence = "training interactions are later than the test target of some user"
    if later:
        average = after_sampled / len(sample) / looked_up
        of_sample = f" of {len(sample):,} sampled ones" if len(sample) < len(targets) else ""
        sentence += f", and {average:.0%} are later than the average one{of_sample}"
    split = rows.dataset.config.split
    inherent = isinstance(split, LeaveLastOut | LeaveLastBasketOut | UserHoldout)
    if inherent:
        sentence += f": {split.kind} does not split at a common time, global_time does"
    limit = None if inherent else 0
    return _finding("future_training", later, training, sentence, limit)


def _filters_on_test_rows(rows: AuditedRows) -> Finding:
    config = rows.dataset.config
    minimums = ("min_item_interactions", "min_user_interactions")
    filters = [f"{name}={least}" for name in minimums if (least := getattr(config, name)) > 1]
    if filters and config.k_core:
        filters.append("k_core")
    if config.duplicates == "last":
        filters.append("duplicates=last")
    test = rows.sizes[_TEST]
    sentence = "interactions of the test part affected the training part through "
    sentence += f"{', '.join(filters)}: counted on {rows.dataset.manifest.filtered_on}"
    if not filters:
        test, sentence = 0, "interactions of the test part affected the training part"
    return _finding("filters_on_test_rows", test, sum(rows.sizes), sentence, warn_above=0)


def _duplicates_across_cuts(rows: AuditedRows) -> Finding:
    """Duplicates have the same time; items outside the catalogue are only in the test part."""
    sentence = (
        "held-out interactions have a duplicate of the same user, item and time in an earlier "
        "part: --set data.duplicates=drop_exact removes it"
    )
    _, across = rows.dataset.copies
    return _finding("duplicates_across_cuts", across, sum(rows.sizes[1:]), sentence, warn_above=0)


def _ties_at_cut(rows: AuditedRows) -> Finding:
    times, targets = rows.dataset.timestamps, rows.targets
    known = targets.ends > targets.starts
    ties = known & (times[targets.ends - 1] == times[targets.targets])
    sentence = (
        "test targets have the same time as the last interaction of their history: which of the "
        f"two is the target depends only on the order ({rows.dataset.manifest.ordered_by})"
    )
    if isinstance(rows.dataset.config.split, LeaveLastOut):
        sentence += "; --set data.split=leave_last_basket_out holds out all of the last time"
    return _finding("ties_at_cut", int(ties.sum()), len(ties), sentence, NOTABLE)


def _few_times(rows: AuditedRows) -> Finding:
    times, exact = count_distinct(rows.dataset.timestamps)
    sentence = (
        "distinct times, as a share of the interactions: if it is small, times are dates or "
        "positions and hardly order the interactions"
    )
    if not exact:
        sentence += "; the number is estimated, to about 0.4%"
    share = times / sum(rows.sizes)
    few = times < FEW_TIMES or share < NOTABLE
    return Finding("few_times", "warn" if few else "info", times, share, sentence)


def _dominant_user(rows: AuditedRows) -> Finding:
    """Count the interactions of a user with far more than any other, who may be a placeholder."""
    lengths = np.diff(rows.dataset.offsets)
    next_most, most = np.sort(np.append(lengths, [0, 0]))[-2:]
    if most < _DOMINANT_TIMES * next_most or most == len(rows.dataset.items):
        sentence = f"interactions are of a user with {_DOMINANT_TIMES} times those of any other"
        return _finding("dominant_user", 0, sum(rows.sizes), sentence)
    user = rows.dataset.user_ids[int(np.argmax(lengths))]
    column = rows.dataset.manifest.columns.user_id
    sentence = (
        f"interactions are of user {user!r}, and the next one has {next_most:,}: if that is a word "
        f"for unknown users, leave it out with --where, as in {column} != {user!r}"
    )
    return _finding("dominant_user", int(most), sum(rows.sizes), sentence, _DOMINANT_SHARE)


def _repeat_targets(rows: AuditedRows, seen: Literal["filter", "allow"]) -> Finding:
    repeats = sum(_repeated(block) for block in rows.blocks())
    sentence = "test targets are in their history already"
    if seen == "filter":
        sentence += (
            ": with seen: filter they are never ranked; if they are real, evaluate with seen: "
            "allow; if not, prepare with --set data.duplicates=first"
        )
    return _finding(
        "repeat_targets",
        repeats,
        len(rows.targets.targets),
        sentence,
        NOTABLE if seen == "filter" else None,
    )


def _repeated(block: AuditedBlock) -> int:
    """Count the targets whose item is in their history."""
    pairs = block.pairs
    wanted = pl.DataFrame(
        {
            "pair": pairs[block.targets.targets - block.start],
            "end": block.targets.ends - block.start,
        }
    )
    found = pl.DataFrame({"pair": pairs}).with_row_index("place")
    found = found.join(wanted, on="pair", how="semi").group_by("pair").agg(pl.col("place").min())
    repeats = wanted.join(found, on="pair").select(pl.col("place") < pl.col("end"))
    return int(repeats.to_series().sum())


def _outside_catalogue(rows: AuditedRows) -> Finding:
    chosen = len(rows.chosen.targets)
    sentence = "test targets are items that are in no earlier part: no metric counts them"
    outside = chosen - len(rows.targets.targets)
    return _finding("outside_catalogue", outside, chosen, sentence, NOTABLE)


def _without_history(rows: AuditedRows) -> Finding:
    without = 0
    for block in rows.blocks():
        known = np.concatenate([[0], np.cumsum(block.items != PAD)])
        starts, ends = block.targets.starts - block.start, block.targets.ends - block.start
        without += int((known[ends] == known[starts]).sum())
    sentence = "test targets have no history: no metric counts them"
    return _finding("without_history", without, len(rows.chosen.targets), sentence)


def _new_users(rows: AuditedRows) -> Finding:
    tested = rows.dataset.cuts[:, 1] < rows.dataset.cuts[:, 2]
    new = tested & (rows.dataset.cuts[:, 0] == 0)
    sentence = "users with test interactions have none in training"
    return _finding("new_users", int(new.sum()), int(tested.sum()), sentence)


def _new_items(rows: AuditedRows) -> Finding:
    known = np.zeros(rows.dataset.num_items + 1, dtype=np.bool_)
    tested = np.zeros(rows.dataset.num_items + 1, dtype=np.int64)
    for block in rows.blocks():
        known[block.items[block.parts == _TRAIN]] = True
        tested += np.bincount(block.items[block.parts == _TEST], minlength=len(tested))
    known[PAD] = False
    sentence = "test interactions are of items that are not in training"
    return _finding("new_items", int(tested[~known].sum()), rows.sizes[_TEST], sentence)


def _dropped_rows(rows: AuditedRows) -> Finding:
    manifest = rows.dataset.manifest
    dropped = sum(manifest.dropped.values())
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in manifest.dropped.items())
    sentence = "rows of the source were dropped" + (f" ({reasons})" if reasons else "")
    return _finding("dropped_rows", dropped, manifest.counts["rows_read"], sentence)
