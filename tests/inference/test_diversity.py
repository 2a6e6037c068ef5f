"""Lists that are not all alike: maximal marginal relevance, and caps on groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.histories import Histories
from recsys.inference import diversity as module
from recsys.inference.diversity import UNGROUPED, Diversity, diverse_top_k
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Scored

NOBODY = Histories.from_lists([[1]])


def test_maximal_marginal_relevance_by_hand() -> None:
    # Items 1 and 2 are the same, 3 is orthogonal to them, 4 is their opposite.
    directions = np.array([[0, 0], [1, 0], [1, 0], [0, 1], [-1, 0]], dtype=np.float32)
    scores = torch.tensor([[-np.inf, 10, 9, 5, 0]])
    # Relevance: 1, .9, .5, 0. After item 1 with weight .3: .63 - .3, .35 - 0, 0 + .3;
    # after items 1 and 3: .63 - .3, 0 - max(-.3, 0).
    for weight, expected in ((0.0, [1, 2, 3, 4]), (0.3, [1, 3, 2, 4]), (1.0, [1, 4, 3, 2])):
        chosen, values = diverse_top_k(
            Scored(scores), NOBODY, 4, "allow", Diversity(weight, directions)
        )
        assert chosen[0].tolist() == expected
        np.testing.assert_array_equal(values[0], scores[0].numpy()[chosen[0]])


def test_equal_scores_are_equally_relevant_and_come_in_the_order_of_tokens() -> None:
    directions = np.array([[0, 0], [1, 0], [1, 0], [0, 1]], dtype=np.float32)
    scores = torch.tensor([[-np.inf, 2, 2, 2]])
    chosen, _ = diverse_top_k(Scored(scores), NOBODY, 3, "allow", Diversity(0.5, directions))
    assert chosen[0].tolist() == [1, 3, 2]


@given(
    groups=st.lists(st.integers(UNGROUPED, 3), min_size=6, max_size=40),
    k=st.integers(1, 6),
    most=st.integers(1, 3),
)
def test_caps_hold_and_no_better_list_does(groups: list[int], k: int, most: int) -> None:
    scores = np.arange(len(groups), 0, -1, dtype=np.float32)  # item 1 is the best
    scores[::3] = scores[0]
    rows = torch.tensor([[-np.inf, *scores]], dtype=torch.float32).repeat(2, 1)
    cap = np.array([UNGROUPED, *groups]), most
    best = sorted(range(1, len(groups) + 1), key=lambda item: (-scores[item - 1], item))
    expected: list[int] = []
    for item in best:
        group = groups[item - 1]
        own = [other for other in expected if groups[other - 1] == group]
        if len(expected) < k and (group == UNGROUPED or len(own) < most):
            expected.append(item)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SMALLEST_POOL", 1)
        patch.setattr(module, "_POOL_PER_ITEM", 1)  # the pool has to grow
        chosen, _ = diverse_top_k(
            Scored(rows), Histories.from_lists([[1], [2]]), k, "allow", Diversity(caps=(cap,))
        )
    for row in chosen.tolist():
        assert row == expected + [0] * (k - len(expected))


def test_without_weight_and_caps_the_best_are_chosen() -> None:
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 301)).astype(np.float32))
    scores[:, 0] = -torch.inf
    histories = Histories.from_lists([[n + 1, 5] for n in range(7)])
    found = diverse_top_k(Scored(scores), histories, 10, "filter", Diversity())
    for ours, best in zip(found, top_k(Scored(scores), histories, 10, "filter"), strict=True):
        np.testing.assert_array_equal(ours, best)
