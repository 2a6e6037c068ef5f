"""What the count models share: counting successions, weighing histories, giving out scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.data.histories import PAD, Histories
from recsys.inference.scorer import user_batches


def item_counts(histories: Histories, num_items: int) -> NDArray[np.float64]:
    """How often each item occurs [I + 1], by item token."""
    return np.bincount(histories.items, minlength=num_items + 1).astype(np.float64)


def transitions(histories: Histories, num_items: int, weights: NDArray[np.float64]) -> csr_array:
    """How often a follows b within a history, by item tokens [b, a].

    A pair at distance d (1: the very next item) counts ``weights[d - 1]``; further apart, nothing.
    """
    shape = (num_items + 1, num_items + 1)
    users, items = histories.users, histories.items
    total = csr_array(shape, dtype=np.float64)
    for distance, weight in enumerate(weights, start=1):
        same = users[distance:] == users[:-distance]
        pairs = (items[:-distance][same], items[distance:][same])
        total = total + csr_array((np.full(len(pairs[0]), weight), pairs), shape=shape)
    return total


def ages(histories: Histories) -> NDArray[np.int64]:
    """How many items of the history are newer than each entry [N]: 0 for the newest."""
    ends = np.repeat(histories.offsets[1:], histories.lengths)
    return ends - 1 - np.arange(len(histories.items))


def weighted_histories(
    histories: Histories, weights: NDArray[np.float64], num_items: int
) -> csr_array:
    """The weights [N] summed by user and item [B, I + 1]."""
    shape = (len(histories), num_items + 1)
    return csr_array((weights, (histories.users, histories.items)), shape=shape)


def user_items(histories: Histories, num_items: int) -> csr_array:
    """Ones where a user has an item [B, I + 1], however often."""
    matrix = weighted_histories(histories, np.ones(len(histories.items)), num_items)
    matrix.data[:] = 1
    return matrix


def give_scores(
    catalogue: Callable[[Histories], NDArray[np.float64]],
    num_items: int,
    histories: Histories,
    candidates: NDArray[np.int32] | None,
) -> torch.Tensor:
    """What `Scorer.score` promises, from a function that scores the whole catalogue [B, I + 1].

    Candidates are picked out batch by batch, so that few candidates take little memory.
    """

    def scores(some: Histories) -> NDArray[np.float32]:
        table = catalogue(some).astype(np.float32)
        table[:, PAD] = -math.inf
        return table

    if candidates is None:
        return torch.from_numpy(scores(histories))
    picked = np.empty(candidates.shape, dtype=np.float32)
    for users in user_batches(len(histories), num_items):
        picked[users] = np.take_along_axis(scores(histories[users]), candidates[users], axis=1)
    return torch.from_numpy(picked)
