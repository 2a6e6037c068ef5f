"""What an index of items finds, and when it is faster than scoring all items."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.inference.indexed_scorer import IndexedScorer
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Seen

_ROUNDS, _SECONDS = 25, 2.0
"""Calls that are timed, or seconds after which no more are."""
FASTER = 1.2
"""How many times as fast as exact search an index must be to be worth its misses."""


@dataclass(frozen=True, slots=True)
class SearchTime:
    """The times of both searches for so many users at a time, on this machine."""

    users: int
    exact_ms: float
    """Milliseconds per user when all items are scored; the median over calls."""
    index_ms: float
    """The same with the index."""
    times_faster: float
    break_even_items: int | None
    """The catalogue that exact search answers in the time of the index: below it, exact search is
    faster. None if encoding the histories takes all the time of exact search."""
    use: str
    """"index" if it is faster by a fifth at least, else "exact"."""


def choose_probes(
    scorer: IndexedScorer, histories: Histories, k: int, seen: Seen, wanted: float
) -> IndexedScorer:
    """Return the scorer with about as few lists read as give a recall, to an eighth; at most all.

    Args:
        scorer: finds items by the index.
        histories: some histories, none empty.
        k: the length of the lists.
        seen: whether items of the histories are left out.
        wanted: the recall, 0 to 1.
    """
    exact, _ = top_k(scorer.exact, histories, k, seen)

    def reading(probes: int) -> IndexedScorer:
        return replace(scorer, index=scorer.index.reading(probes))

    def enough(probes: int) -> bool:
        return recall(top_k(reading(probes), histories, k, seen)[0], exact) >= wanted

    fewest, most = 0, 1
    while most < len(scorer.index.directions) and not enough(most):
        fewest, most = most, min(2 * most, len(scorer.index.directions))
    while most - fewest > max(1, most // 8):
        middle = (fewest + most) // 2
        fewest, most = (fewest, middle) if enough(middle) else (middle, most)
    return reading(most)


def recall_of(scorer: IndexedScorer, histories: Histories, k: int, seen: Seen) -> float:
    """Return the share of the k best items of histories that the index finds."""
    found, _ = top_k(scorer, histories, k, seen)
    return recall(found, top_k(scorer.exact, histories, k, seen)[0])


def recall(found: NDArray[np.int32], exact: NDArray[np.int32]) -> float:
    """Return the share of the items of exact lists [B, k] that is in the found ones [B, k].

    PAD, which fills the end of lists, does not count.

    >>> recall(np.array([[1, 2, 3], [5, 0, 0]]), np.array([[3, 2, 4], [5, 0, 0]]))
    0.75
    """
    both = (exact[:, :, None] == found[:, None, :]).any(axis=2) & (exact != PAD)
    return float(both.sum() / max(1, (exact != PAD).sum()))


def search_times(
    new_scorer: Callable[[], IndexedScorer],
    histories: Histories,
    k: int,
    seen: Seen,
    batches: Sequence[int],
) -> list[SearchTime]:
    """Time both searches, in turns, for numbers of users at a time.

    Args:
        new_scorer: returns a scorer that finds items by the index, and knows no history yet.
        histories: some histories, none empty; they are repeated where there are too few.
        k: the length of the lists.
        seen: whether items of the histories are left out.
        batches: the numbers of users.
    """
    return [_times(new_scorer, histories, k, seen, users) for users in batches]


def _times(
    new_scorer: Callable[[], IndexedScorer],
    histories: Histories,
    k: int,
    seen: Seen,
    users: int,
) -> SearchTime:
    rounds: list[tuple[float, float, float]] = []
    began = time.perf_counter()
    while len(rounds) <= _ROUNDS and time.perf_counter() - began < _SECONDS:
        rows = (np.arange(users) + len(rounds) * users) % len(histories)
        rounds.append(_round(new_scorer, histories.take(rows), k, seen))
    timed = rounds[1:] or rounds  # the first calls are slower
    exact, index, encoding = map(statistics.median, zip(*timed, strict=True))
    even = None
    if exact > encoding:
        # Exact search takes a time for each item, besides encoding, which both do.
        num_items = new_scorer().num_items
        even = round(num_items * max(0.0, index - encoding) / (exact - encoding))
    faster = exact / index
    use = "index" if faster >= FASTER else "exact"
    return SearchTime(users, 1e3 * exact / users, 1e3 * index / users, faster, even, use)


def _round(
    new_scorer: Callable[[], IndexedScorer], histories: Histories, k: int, seen: Seen
) -> tuple[float, float, float]:
    """Return the seconds of exact search, of the search by the index, and of encoding alone."""
    scorer, encoder = new_scorer(), new_scorer().encoder
    times = [time.perf_counter()]
    for call in (
        lambda: top_k(scorer.exact, histories, k, seen),
        lambda: top_k(scorer, histories, k, seen),
        lambda: encoder.states(histories).cpu(),  # which waits for a GPU
    ):
        call()
        times.append(time.perf_counter())
    exact, index, encoding = np.diff(times).tolist()
    return exact, index, encoding
