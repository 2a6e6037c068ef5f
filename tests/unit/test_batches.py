from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.batches import TrainingBatches
from recsys.data.histories import Histories

lists = st.lists(st.lists(st.integers(1, 50), max_size=12), min_size=1, max_size=30)


def test_inputs_and_targets_by_hand() -> None:
    histories = Histories.from_lists([[1, 2, 3, 4, 5], [7], [8, 9]])
    batches = TrainingBatches(histories, max_sequence_length=3, batch_tokens=100, seed=0)
    (batch,) = list(batches)
    assert batch.items.tolist() == [[2, 3, 4], [8, 0, 0]]
    assert batch.targets.tolist() == [[3, 4, 5], [9, 0, 0]]
    assert batch.lengths.tolist() == [3, 1]


@settings(max_examples=60, deadline=None)
@given(lists, st.integers(1, 10), st.integers(1, 40), st.integers(0, 99))
def test_every_pair_once_an_epoch_within_the_budget(
    rows: list[list[int]], width: int, budget: int, seed: int
) -> None:
    expected = [pair for row in rows for pair in itertools.pairwise(row[-width - 1 :])]
    batches = TrainingBatches(Histories.from_lists(rows), width, budget, seed)
    found = []
    for batch in batches:
        assert len(batch.items) == 1 or batch.items.numel() <= budget
        real = batch.targets > 0
        assert torch.equal(real.sum(1), batch.lengths)
        assert torch.equal(batch.items > 0, real)
        found += list(zip(batch.items[real].tolist(), batch.targets[real].tolist(), strict=True))
    assert sorted(found) == sorted(expected)


def test_epochs_differ_and_seeds_repeat() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 99, size=rng.integers(2, 30)).tolist() for _ in range(300)]
    histories = Histories.from_lists(rows)
    one, two = (TrainingBatches(histories, 20, 200, seed=3) for _ in range(2))
    first = [batch.items for batch in one]
    assert all(torch.equal(a, b.items) for a, b in zip(first, two, strict=True))
    second = [batch.items for batch in one]
    assert any(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, second, strict=False)
    )


def test_like_lengths_meet() -> None:
    """Pooling by length keeps padding low on a long-tailed log."""
    rng = np.random.default_rng(0)
    rows = [[1] * int(size) for size in 2 + rng.geometric(0.05, size=3_000)]
    batches = TrainingBatches(Histories.from_lists(rows), 200, 2_000, seed=0)
    computed = sum(batch.items.numel() for batch in batches)
    assert batches.num_tokens / computed > 0.85
