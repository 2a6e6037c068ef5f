"""What an index of items loses, and when it saves time."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.inference.item_index import IndexedScorer
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Seen

_ROUNDS, _SECONDS = 25, 2.0
"""Calls that are timed, or seconds after which no more are."""
FASTER = 1.2
"""How many times as fast as exact search an index must be to be worth its misses."""


def recall(found: NDArray[np.int32], exact: NDArray[np.int32]) -> float:
    """Return the share of the items of exact lists [B, k] that is in the found ones [B, k].

    PAD, which fills the end of lists, does not count.

    >>> recall(np.array([[1, 2, 3], [5, 0, 0]]), np.array([[3, 2, 4], [5, 0, 0]]))
    0.75
    """
    both = (exact[:, :, None] == found[:, None, :]).any(axis=2) & (exact != PAD)
    return float(both.sum() / max(1, (exact != PAD).sum()))


def recall_of(scorer: IndexedScorer, histories: Histories, k: int, seen: Seen) -> float:
    """Return the share of the k best items of histories that the index finds."""
    found, _ = top_k(scorer, histories, k, seen)
    return recall(found, top_k(scorer.exact, histories, k, seen)[0])


def choose_probes(
    scorer: IndexedScorer, histories: Histories, k: int, seen: Seen, wanted: float
) -> IndexedScorer:
    """Return the scorer with about as few lists read as give a recall, to an eighth; at most all.

    No history may be empty; ``wanted`` is the recall of the k best items, 0 to 1.
    """
    exact, _ = top_k(scorer.exact, histories, k, seen)

    def reading(probes: int) -> IndexedScorer:
        return replace(scorer, index=scorer.index.reading(probes))

    def enough(probes: int) -> bool:
        return recall(top_k(reading(probes), histories, k, seen)[0], exact) >= wanted

    probes, num_lists = [1], len(scorer.index.directions)
    while probes[-1] < num_lists:
        probes.append(min(probes[-1] + max(1, probes[-1] // 8), num_lists))
    return reading(probes[bisect_left(probes[:-1], True, key=enough)])


@dataclass(frozen=True, slots=True)
class SearchTime:
    """The times of both searches for so many users at a time, on this machine."""

    users: int
    exact_ms: float
    """Milliseconds per user when all items are scored; the median over calls."""
    index_ms: float
    """The same with the index."""
    times_faster: float
    use: str
    """"index" if it is faster by a fifth at least, else "exact"."""


def search_times(
    new_scorer: Callable[[], IndexedScorer],
    histories: Histories,
    k: int,
    seen: Seen,
    users: int,
) -> SearchTime:
    """Time both searches in turns for a number of users at a time.

    ``new_scorer`` returns one that knows no history yet. No history may be empty; they are repeated
    where there are too few.
    """
    rounds: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(rounds) <= _ROUNDS and time.perf_counter() - began < _SECONDS:
        rows = histories.take((np.arange(users) + len(rounds) * users) % len(histories))
        scorer = new_scorer()
        started = time.perf_counter()
        top_k(scorer.exact, rows, k, seen)
        between = time.perf_counter()
        top_k(scorer, rows, k, seen)
        rounds.append((between - started, time.perf_counter() - between))
    timed = rounds[1:] or rounds  # the first calls are slower
    exact, index = map(statistics.median, zip(*timed, strict=True))
    use = "index" if exact / index >= FASTER else "exact"
    return SearchTime(users, 1e3 * exact / users, 1e3 * index / users, exact / index, use)
