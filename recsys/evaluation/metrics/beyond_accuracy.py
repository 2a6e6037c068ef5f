"""Metrics of recommended lists beyond accuracy: coverage, Gini, diversity, means over lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.inference.scorer import user_batches

Lists = NDArray[np.int32]
"""Item tokens [N, k], best first; PAD marks an empty position."""


def coverage(lists: Lists, num_items: int) -> float:
    """Return the share of the catalogue that is in any list.

    >>> coverage(np.array([[1, 2], [1, 3]]), num_items=4)
    0.75
    """
    return float(np.count_nonzero(_positions_of_items(lists, num_items)) / num_items)


def gini(lists: Lists, num_items: int) -> float:
    """Return the Gini coefficient of the positions that the items of the catalogue take.

    It is 0 if every item takes as many, and near 1 if one item takes all.

    >>> gini(np.array([[1, 2], [1, 3]]), num_items=4)
    0.375
    """
    positions = np.sort(_positions_of_items(lists, num_items))
    weights = 2 * np.arange(1, num_items + 1) - num_items - 1
    return float(weights @ positions) / (num_items * max(1, int(positions.sum())))


def _positions_of_items(lists: Lists, num_items: int) -> NDArray[np.int64]:
    """Count the positions that each item of the catalogue takes [I]."""
    return np.bincount(lists[lists != PAD], minlength=num_items + 1)[1:]


TOP_K_METRICS: Mapping[str, Callable[[Lists, int], float]] = {"coverage": coverage, "gini": gini}
"""The metrics of all lists together [N, k] and the size of the catalogue, by name."""

DATASET_METRICS = ("novelty", "popularity_lift", "diversity")
"""The metrics that need the popularity or the categories of the items, which no table of a run
holds: they are computed where the dataset is, and compared as they were logged."""


def mean_of_lists(lists: Lists, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average a number that each item has over the items of each list [N]; NaN for an empty list.

    Args:
        lists: item tokens [N, k].
        values: the number of each item token [I + 1].
    """
    means = np.empty(len(lists))
    for batch in user_batches(*lists.shape):
        listed = lists[batch]
        with np.errstate(invalid="ignore"):
            sums = (values[listed] * (listed != PAD)).sum(axis=1)
            means[batch] = sums / (listed != PAD).sum(axis=1)
    return means


def diversity(lists: Lists, features: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how different the items of each list are [N]; NaN for fewer than two items.

    The mean, over all pairs of its items, of the share of features in which the two differ
    (intra-list diversity; Ziegler et al., WWW 2005, with the Hamming distance). An unknown value
    differs from every other.

    Args:
        lists: item tokens [N, k].
        features: the categories of each item token as numbers [I + 1, F]; -1 if unknown.

    >>> diversity(np.array([[1, 2, 3]]), features=np.array([[-1], [5], [5], [6]]))
    array([0.66666667])
    """
    different = np.empty(len(lists))
    for batch in user_batches(len(lists), lists.shape[1]):
        listed = lists[batch]
        sizes = (listed != PAD).sum(axis=1)
        equal_pairs = np.zeros(len(listed))
        for column in features.T:
            values = np.where(listed == PAD, -1, column[listed])
            rows = np.broadcast_to(np.arange(len(listed))[:, None], listed.shape)[values >= 0]
            width = int(column.max(initial=0)) + 1
            shared, counts = np.unique(rows * width + values[values >= 0], return_counts=True)
            equal_pairs += np.bincount(shared // width, counts * (counts - 1.0), len(listed))
        with np.errstate(invalid="ignore"):
            different[batch] = 1 - equal_pairs / (sizes * (sizes - 1) * features.shape[1])
    return different
