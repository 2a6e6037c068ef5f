"""The leakage audit: properties of a dataset and its split that distort metrics; and drift.

The leak of all leave-one-out splits is described by Ji et al. 2023, "A critical study on data
leakage in recommender system offline evaluation" (arXiv:2010.11060).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import LeaveLastBasketOut, LeaveLastOut, UserHoldout
from recsys.data.histories import PAD
from recsys.data.manifest import Drift
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import TargetPositions, user_blocks

AUDIT = "audit.json"
"""The file in which runs save the findings."""

NOTABLE = 0.01
"""The share above which a finding is a warning, if a few cases are harmless."""

FEW_TIMES = 10
"""Fewer distinct times than this are a warning, however short the log is."""

EXACT = 10_000_000
"""The number of times up to which distinct ones are counted exactly."""

BLOCK = 1 << 20
"""Interactions that are read at a time, so that memory does not grow with them; a user with more
is read at once."""

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
    rows = _Rows(dataset)
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
    return [finding for finding in findings if finding.severity == "warn"]


@dataclass(frozen=True)
class _Block:
    """All n interactions of consecutive users."""

    users: NDArray[np.int64]
    """Shape [n]: the user of each interaction, 0 for the first user of the block."""
    parts: NDArray[np.int8]
    """Shape [n]: 0 to 2 for training, validation and test."""
    items: NDArray[np.int32]
    """Shape [n]: item tokens."""
    times: NDArray[np.int64]
    """Shape [n], ascending for each user."""
    targets: TargetPositions
    """The test targets of the users, with positions in the block."""


@dataclass(frozen=True)
class _Rows:
    """The interactions of a dataset, with facts that several findings need."""

    dataset: PreparedDataset

    @cached_property
    def sizes(self) -> list[int]:
        """The number of interactions in training, validation and test."""
        ends = self.dataset.cuts.sum(axis=0, dtype=np.int64)
        return np.diff(ends, prepend=0).tolist()  # type: ignore[no-any-return]

    @cached_property
    def chosen(self) -> TargetPositions:
        """The test targets of the split."""
        return self.dataset.target_positions("test")

    @cached_property
    def targets(self) -> TargetPositions:
        """The test targets inside the catalogue."""
        return self.chosen[self.dataset.items[self.chosen.targets] != PAD]

    def blocks(self) -> Iterator[_Block]:
        """Yield all interactions, user by user, about `BLOCK` at a time."""
        data, targets = self.dataset, self.targets
        for low, high in user_blocks(data.offsets, BLOCK):
            start, end = int(data.offsets[low]), int(data.offsets[high])
            lengths = np.diff(data.offsets[low : high + 1])
            ends = np.column_stack([data.cuts[low:high, :2], lengths])
            parts = np.tile(np.arange(3, dtype=np.int8), len(ends))
            span = slice(*np.searchsorted(targets.targets, (start, end)))
            yield _Block(
                users=np.repeat(np.arange(len(lengths)), lengths),
                parts=np.repeat(parts, np.diff(ends, prepend=0).ravel()),
                items=np.asarray(data.items[start:end]),
                times=np.asarray(data.timestamps[start:end]),
                targets=TargetPositions(
                    targets.users[span],
                    targets.targets[span] - start,
                    targets.starts[span] - start,
                    targets.ends[span] - start,
                ),
            )


def _finding(
    name: str, count: int, total: int, sentence: str, warn_above: float | None = None
) -> Finding:
    share = count / total if total else 0.0
    warns = warn_above is not None and share > warn_above
    return Finding(name, "warn" if warns else "info", count, share, sentence)


def _future_training(rows: _Rows) -> Finding:
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
    return _finding("future_training", later, training, sentence, None if inherent else 0)


def _filters_on_test_rows(rows: _Rows) -> Finding:
    config = rows.dataset.config
    minimums = ("min_item_interactions", "min_user_interactions")
    filters = [f"{name}={least}" for name in minimums if (least := getattr(config, name)) > 1]
    if filters and config.k_core:
        filters.append("k_core")
    if config.duplicates == "last":
        filters.append("duplicates=last")
    sentence = "interactions of the test part affected the training part"
    if filters:
        counted = rows.dataset.manifest.filtered_on
        sentence += f" through {', '.join(filters)}: counted on {counted}"
    test = rows.sizes[_TEST] if filters else 0
    return _finding("filters_on_test_rows", test, sum(rows.sizes), sentence, warn_above=0)


def _duplicates_across_cuts(rows: _Rows) -> Finding:
    """Duplicates have the same time; items outside the catalogue are only in the test part."""
    sentence = (
        "held-out interactions have a duplicate of the same user, item and time in an earlier "
        "part: --set data.duplicates=drop_exact removes it"
    )
    _, across = rows.dataset.copies
    return _finding("duplicates_across_cuts", across, sum(rows.sizes[1:]), sentence, warn_above=0)


def _ties_at_cut(rows: _Rows) -> Finding:
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


def _few_times(rows: _Rows) -> Finding:
    times = pl.Series(np.asarray(rows.dataset.timestamps))
    sentence = (
        "distinct times, as a share of the interactions: if it is small, times are dates or "
        "positions and hardly order the interactions"
    )
    count = times.n_unique() if len(times) <= EXACT else cast("int", times.approx_n_unique())
    if len(times) > EXACT:
        sentence += "; the number is estimated, to about 1%"
    share = count / len(times)
    few = count < FEW_TIMES or share < NOTABLE
    return Finding("few_times", "warn" if few else "info", count, share, sentence)


def _dominant_user(rows: _Rows) -> Finding:
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


def _repeat_targets(rows: _Rows, seen: Literal["filter", "allow"]) -> Finding:
    repeats = 0
    for block in rows.blocks():
        pairs = block.users * (int(block.items.max(initial=0)) + 1) + block.items
        places = pl.DataFrame({"pair": pairs}).with_row_index("place")
        firsts = places.select(pl.col("place").min().over("pair")).to_series().to_numpy()
        repeats += int((firsts[block.targets.targets] < block.targets.ends).sum())
    sentence = "test targets are in their history already"
    if seen == "filter":
        sentence += (
            ": with seen: filter they are never ranked; if they are real, evaluate with seen: "
            "allow; if not, prepare with --set data.duplicates=first"
        )
    limit = NOTABLE if seen == "filter" else None
    return _finding("repeat_targets", repeats, len(rows.targets.targets), sentence, limit)


def _outside_catalogue(rows: _Rows) -> Finding:
    chosen = len(rows.chosen.targets)
    sentence = "test targets are items that are in no earlier part: no metric counts them"
    outside = chosen - len(rows.targets.targets)
    return _finding("outside_catalogue", outside, chosen, sentence, NOTABLE)


def _without_history(rows: _Rows) -> Finding:
    without = 0
    for block in rows.blocks():
        known = np.concatenate([[0], np.cumsum(block.items != PAD)])
        without += int((known[block.targets.ends] == known[block.targets.starts]).sum())
    sentence = "test targets have no history: no metric counts them"
    return _finding("without_history", without, len(rows.chosen.targets), sentence)


def _new_users(rows: _Rows) -> Finding:
    tested = rows.dataset.cuts[:, 1] < rows.dataset.cuts[:, 2]
    new = tested & (rows.dataset.cuts[:, 0] == 0)
    sentence = "users with test interactions have none in training"
    return _finding("new_users", int(new.sum()), int(tested.sum()), sentence)


def _new_items(rows: _Rows) -> Finding:
    known = np.zeros(rows.dataset.num_items + 1, dtype=np.bool_)
    tested = np.zeros(rows.dataset.num_items + 1, dtype=np.int64)
    for block in rows.blocks():
        known[block.items[block.parts == _TRAIN]] = True
        tested += np.bincount(block.items[block.parts == _TEST], minlength=len(tested))
    known[PAD] = False
    sentence = "test interactions are of items that are not in training"
    return _finding("new_items", int(tested[~known].sum()), rows.sizes[_TEST], sentence)


def _dropped_rows(rows: _Rows) -> Finding:
    manifest = rows.dataset.manifest
    dropped = sum(manifest.dropped.values())
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in manifest.dropped.items())
    sentence = "rows of the source were dropped" + (f" ({reasons})" if reasons else "")
    return _finding("dropped_rows", dropped, manifest.counts["rows_read"], sentence)


def measure_drift(before: pl.DataFrame, added: pl.DataFrame, seed: int = 0) -> Drift:
    """Compare the interactions that an append adds with those that were there.

    Args:
        before: user_id, item_id and timestamp of the interactions, at least one.
        added: the same of those added.
        seed: of the sample that shows the shift by chance.

    >>> before = pl.DataFrame({"user_id": [1, 1], "item_id": [7, 8], "timestamp": [3, 5]})
    >>> added = pl.DataFrame({"user_id": [1, 2], "item_id": [7, 9], "timestamp": [4, 9]})
    >>> drift = measure_drift(before, added)
    >>> drift.new_users, drift.new_items, drift.late, drift.since_last
    (1, 1, 1, 4)
    """
    rows, newest = len(added), int(before["timestamp"].to_numpy().max())
    users, items = added["user_id"].unique(), added["item_id"].unique()
    new_users = int((~users.is_in(before["user_id"].unique().implode())).sum())
    new_items = int((~items.is_in(before["item_id"].unique().implode())).sum())
    late = int((added["timestamp"] < newest).sum())
    shift, by_chance = popularity_shift(before["item_id"], added["item_id"], seed)
    return Drift(
        interactions=rows,
        interaction_share=rows / (len(before) + rows),
        new_users=new_users,
        new_user_share=new_users / max(len(users), 1),
        new_items=new_items,
        new_item_share=new_items / max(len(items), 1),
        late=late,
        late_share=late / max(rows, 1),
        since_last=int(added["timestamp"].to_numpy().max()) - newest if rows else None,
        popularity_shift=shift,
        shift_by_chance=by_chance,
    )


def popularity_shift(
    before: pl.Series, added: pl.Series, seed: int = 0
) -> tuple[float | None, float | None]:
    """Return the Jensen-Shannon distance between two lists of items, and that by chance alone.

    The second number is the distance of as many items as were added, drawn from those before: few
    items are far from any distribution. Both are None if nothing was added. See Lin 1991,
    "Divergence measures based on the Shannon entropy".
    """
    from scipy.spatial.distance import jensenshannon  # noqa: PLC0415 - all commands import audits

    if added.is_empty():
        return None, None
    old, new = (ids.rename("item").to_frame().group_by("item").len() for ids in (before, added))
    both = old.join(new, on="item", how="full", coalesce=True, suffix="_added").sort("item")
    counts = both.select(pl.exclude("item").fill_null(0).cast(pl.Float64)).to_numpy()
    shares = counts[:, 0] / counts[:, 0].sum()
    drawn = np.random.default_rng(seed).multinomial(len(added), shares)
    with np.errstate(invalid="ignore"):  # rounding can leave the root of a negative number
        distances = [jensenshannon(shares, other, base=2) for other in (counts[:, 1], drawn)]
    shift, by_chance = np.nan_to_num(distances).tolist()
    return shift, by_chance
