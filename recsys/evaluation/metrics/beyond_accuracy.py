"""Metrics of recommended lists beyond accuracy: coverage, Gini, diversity, means over lists."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.inference.scorer import user_batches

Lists = NDArray[np.int32]
"""Item tokens [N, k], best first; PAD: nothing in this place."""


def coverage_and_gini(lists: Lists, num_items: int) -> tuple[float, float]:
    """Share of the catalogue that is in any list; and how unevenly places go to items.

    Gini is 0 where every item of the catalogue has as many places, and near 1 where one has all.

    >>> coverage_and_gini(np.array([[1, 2], [1, 3]]), num_items=4)
    (0.75, 0.375)
    """
    places = np.sort(np.bincount(lists[lists != PAD], minlength=num_items + 1)[1:])
    weights = 2 * np.arange(1, num_items + 1) - num_items - 1
    uneven = float(weights @ places) / (num_items * max(1, int(places.sum())))
    return float(np.count_nonzero(places) / num_items), uneven


def mean_of_lists(lists: Lists, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over the items of each list [N] of a number that each item has; NaN of an empty list.

    Args:
        lists: [N, k].
        values: by item token [I + 1].
    """
    means = np.empty(len(lists))
    for some in user_batches(*lists.shape):
        there = lists[some] != PAD
        with np.errstate(invalid="ignore"):
            means[some] = (values[lists[some]] * there).sum(axis=1) / there.sum(axis=1)
    return means


def diversity(lists: Lists, features: NDArray[np.int64]) -> NDArray[np.float64]:
    """How unlike the items of each list are [N]; NaN of a list with fewer than two.

    The mean, over all pairs of its items, of the share of features in which the two differ
    (intra-list diversity; Ziegler et al., WWW 2005, with the Hamming distance). An unknown value
    differs from every other.

    Args:
        lists: [N, k].
        features: of each item token, a number for each value; -1: unknown [I + 1, F].

    >>> diversity(np.array([[1, 2, 3]]), features=np.array([[-1], [5], [5], [6]]))
    array([0.66666667])
    """
    unlike = np.empty(len(lists))
    for some in user_batches(len(lists), lists.shape[1]):
        listed = lists[some]
        sizes = (listed != PAD).sum(axis=1)
        alike = np.zeros(len(listed))
        for column in features.T:
            values = np.where(listed == PAD, -1, column[listed])
            rows = np.broadcast_to(np.arange(len(listed))[:, None], listed.shape)[values >= 0]
            width = int(column.max(initial=0)) + 1
            shared, counts = np.unique(rows * width + values[values >= 0], return_counts=True)
            alike += np.bincount(shared // width, counts * (counts - 1.0), len(listed))
        with np.errstate(invalid="ignore"):
            unlike[some] = 1 - alike / (sizes * (sizes - 1) * features.shape[1])
    return unlike
