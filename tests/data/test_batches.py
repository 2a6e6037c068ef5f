"""Batches: each pair once, cuts inside the histories, similar lengths, seeds and epochs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.batches import SequenceBatch, TrainingBatches
from recsys.data.histories import Histories
from recsys.errors import InputError


def histories_of(histories: Histories) -> list[list[int]]:
    return [row[row > 0].tolist() for row in histories.padded()]


def numbered(lengths: list[int]) -> Histories:
    """Number the purchases of all histories 1, 2, 3, …, so that each token is unique."""
    ends = np.cumsum([1, *lengths])
    spans = itertools.pairwise(ends.tolist())
    return Histories.from_lists([range(start, end) for start, end in spans])


KINDS: list[dict[str, Any]] = [{}, {"mask_probability": 0.3}, {"max_targets": 4}]


@pytest.mark.parametrize(
    ("windows", "items", "targets"),
    [
        ("newest", [[6, 7, 8], [10, 0, 0]], [[7, 8, 9], [11, 0, 0]]),
        ("all", [[2, 0, 0], [3, 4, 5], [6, 7, 8], [10, 0, 0]], None),
    ],
)
def test_inputs_and_targets_by_hand(windows: Any, items: Any, targets: Any) -> None:
    histories = Histories.from_lists([[2, 3, 4, 5, 6, 7, 8, 9], [1], [10, 11]])
    (batch,) = TrainingBatches(histories, 3, 100, 0, windows)
    assert sorted(batch.items.tolist()) == items
    after = [[3, 0, 0], [4, 5, 6], [7, 8, 9], [11, 0, 0]] if targets is None else targets
    assert sorted(batch.targets.tolist()) == after


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=30),
    st.integers(1, 10),
    st.integers(1, 40),
    st.integers(0, 99),
)
def test_an_epoch_has_each_pair_once_within_the_budget(
    lengths: list[int], width: int, budget: int, seed: int
) -> None:
    """No target is dropped, and the last window is that of ``windows="newest"``."""
    histories = numbered(lengths)
    windows: dict[str, set[tuple[int, ...]]] = {}
    for kind, rows in (
        ("newest", [row[-width - 1 :] for row in histories_of(histories)]),
        ("all", histories_of(histories)),
    ):
        batches = TrainingBatches(histories, width, budget, seed, cast("Any", kind))
        expected = [pair for row in rows for pair in itertools.pairwise(row)]
        assert batches.num_tokens == len(expected)
        found, windows[kind] = [], set()
        for batch in batches:
            assert len(batch.items) == 1 or batch.items.numel() <= budget
            assert batch.items.shape[1] <= width
            real = batch.targets > 0
            assert torch.equal(real.sum(1), batch.lengths)
            assert torch.equal(batch.items > 0, real)
            pairs = zip(batch.items[real].tolist(), batch.targets[real].tolist(), strict=True)
            found += list(pairs)
            windows[kind] |= {tuple(row[row > 0].tolist()) for row in batch.targets}
        assert sorted(found) == expected
    assert windows["newest"] <= windows["all"]


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_differ_and_seeds_repeat(kind: dict[str, Any]) -> None:
    histories = numbered(np.random.default_rng(0).integers(2, 30, size=300).tolist())

    def epoch(batches: TrainingBatches) -> list[str]:
        return [str((batch.items.tolist(), batch.targets.tolist())) for batch in batches]

    one, two, other = (TrainingBatches(histories, 20, 200, seed, **kind) for seed in (3, 3, 4))
    first, second = epoch(one), epoch(one)
    assert (first, second) == (epoch(two), epoch(two))
    assert set(first) != set(second)
    assert set(first) != set(epoch(other))


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]])
def test_sequences_of_similar_length_are_batched_together(kind: dict[str, Any]) -> None:
    """Padding is low on a long-tailed log, and batches of a pool come in no order of length."""
    lengths = 2 + np.random.default_rng(0).geometric(0.05, size=3_000)
    batches = TrainingBatches(numbered(lengths.tolist()), 50, 2_000, 0, **kind)
    tokens = batches.num_tokens
    computed = sum(b.items.numel() + bool(kind) * b.targets.numel() for b in batches)
    assert tokens / computed > 0.85
    pool = TrainingBatches(numbered(lengths[:400].tolist()), 100, 300, 0, **kind)
    widths = np.array([batch.items.shape[1] for batch in pool])
    assert 20 < len(widths) < 50, "one pool, within which rows are sorted"
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.5


def test_times_follow_their_items_into_windows() -> None:
    known = numbered([8, 3, 5, 2])
    known = replace(known, times=known.items.astype(np.int64) * 10)
    for batch in TrainingBatches(known, 3, 12, 0, "all"):
        assert batch.times is not None
        real = batch.targets > 0
        assert torch.equal(batch.times[:, :-1][real], batch.items[real] * 10)
        assert torch.equal(batch.times[:, 1:][real], batch.targets[real] * 10)
        # torch warns of strides where it searches.
        tensors = (batch.items, batch.lengths, batch.targets, batch.times)
        assert all(tensor.is_contiguous() for tensor in tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_goes_on_at_the_batch_of_a_state(kind: dict[str, Any]) -> None:
    lengths = np.random.default_rng(0).integers(2, 30, size=60).tolist()
    histories = numbered([*lengths, 200])
    full = TrainingBatches(histories, 8, 20, 3, **kind)
    _, second = (list(full) for _ in range(2))
    batches = TrainingBatches(histories, 8, 20, 3, **kind)
    batches.epoch = 1
    assert len(batches) == len(second)
    batches.load_state_dict({"batches": 2})
    for batch, resumed in zip(second[2:], batches, strict=True):
        assert torch.equal(batch.items, resumed.items)
        assert torch.equal(batch.targets, resumed.targets)
    assert batches.state_dict()["batches"] == len(second)


def cuts(batch: SequenceBatch) -> list[tuple[list[int], list[int]]]:
    """Return the inputs and targets of each row, without padding."""
    rows = zip(batch.items.tolist(), batch.lengths.tolist(), batch.targets.tolist(), strict=True)
    found = []
    for items, length, targets in rows:
        count = sum(target > 0 for target in targets)
        assert not any(items[length:])
        assert not any(targets[count:])
        found.append((items[:length], targets[:count]))
    return found


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=20),
    st.integers(1, 10),
    st.integers(1, 8),
    st.integers(1, 60),
    st.integers(0, 99),
)
def test_cuts_lie_inside_the_histories_within_the_budget(
    lengths: list[int], width: int, most: int, budget: int, seed: int
) -> None:
    """Inputs end just before the targets; both are as long as the history and the limits allow."""
    histories = numbered(lengths)
    batches = TrainingBatches(histories, width, budget, seed, max_targets=most)
    tokens, planned = batches.num_tokens, len(batches)
    epoch = list(batches)
    assert len(epoch) == planned
    counts = Counter[int]()
    for batch in epoch:
        assert len(batch.items) == 1 or batch.items.numel() + batch.targets.numel() <= budget
        assert batch.items.shape[1] <= width
        for inputs, targets in cuts(batch):
            user = int(np.searchsorted(histories.offsets, inputs[0] - 1, side="right")) - 1
            first, end = histories.offsets[user] + 1, histories.offsets[user + 1] + 1
            cut = targets[0]
            assert first < cut < end
            assert inputs == list(range(max(first, cut - width), cut))
            assert targets == list(range(cut, min(end, cut + most)))
            counts[user] += 1
            tokens -= len(inputs) + len(targets)
    assert tokens == 0
    assert counts == {
        user: math.ceil((length - 1) / width) for user, length in enumerate(lengths) if length > 1
    }


def test_a_pass_is_divided_into_epochs() -> None:
    histories = numbered([5] * 100)
    whole = TrainingBatches(histories, 8, 40, seed=3)
    parts = TrainingBatches(histories, 8, 40, seed=3, epochs_per_pass=3)
    planned = [row for epoch in range(3) for batch in parts.plan(epoch) for row in batch]
    assert sorted(planned) == list(range(100))
    assert sorted(planned) == sorted(row for batch in whole.plan(0) for row in batch)
    assert [b.tolist() for b in parts.plan(3)] != [b.tolist() for b in parts.plan(0)]


def test_more_epochs_than_batches_are_refused() -> None:
    batches = TrainingBatches(numbered([5] * 10), 8, 40, seed=3, epochs_per_pass=100)
    with pytest.raises(InputError, match="epochs_per_pass=100: a pass over the log has"):
        len(batches)
