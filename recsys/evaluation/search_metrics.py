"""What two stages and an index of items lose, and when an index saves time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.data.holdout import Holdout
from recsys.data.prepared import Part
from recsys.evaluation.tables import evaluate
from recsys.inference.item_index import IndexedScorer
from recsys.inference.ranking import TwoStages, top_k
from recsys.inference.scorer import Scorer, Seen

_ROUNDS, _SECONDS = 25, 2.0
"""Calls that are timed, or seconds after which no more are."""
FASTER = 1.2
"""How many times as fast as exact search an index must be to be worth its misses."""


@dataclass(frozen=True, slots=True)
class RetrievalMetrics:
    """The metrics of two stages; all but the seconds are means over users."""

    retrieve: int
    """N; for one stage the size of the catalogue."""
    retrieved: float
    """The share of a user's targets among the N: the upper limit of recall."""
    recall_at_10: float
    ndcg_at_10: float
    seconds: float
    """The time for ranking all targets."""


def retrieval_metrics(
    retriever: Scorer,
    ranker: Scorer,
    holdout: Holdout,
    part: Part,
    seen: Seen,
    sizes: Sequence[int],
) -> list[RetrievalMetrics]:
    """Return the metrics of two stages for each N of ``sizes``, ascending; then those of one stage.

    An N as large as the catalogue would be the same as one stage, and is skipped.

    Raises:
        InputError: an N is below 1.
    """
    num_items = ranker.num_items
    stages: list[tuple[int, Scorer]] = [
        (size, TwoStages(retriever, ranker, size, seen))
        for size in sorted(set(sizes))
        if size < num_items
    ]
    metrics = []
    for size, scorer in [*stages, (num_items, ranker)]:
        started = time.perf_counter()
        table = evaluate(scorer, holdout, part, seen)
        seconds = time.perf_counter() - started
        # A target that is not retrieved has no rank; one that is has a rank up to N, in recall@N.
        names = [f"recall_at_{size}", "recall_at_10", "ndcg_at_10"]
        retrieved, recall_at_10, ndcg = (float(table.values(name).mean()) for name in names)
        metrics.append(RetrievalMetrics(size, retrieved, recall_at_10, ndcg, seconds))
    return metrics


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

    def seconds(rows: Histories) -> tuple[float, float, float]:
        """Return the seconds of exact search, of the search by the index, of encoding alone."""
        scorer, encoder = new_scorer(), new_scorer().encoder
        times = [time.perf_counter()]
        for call in (
            lambda: top_k(scorer.exact, rows, k, seen),
            lambda: top_k(scorer, rows, k, seen),
            lambda: encoder.states(rows).cpu(),  # which waits for a GPU
        ):
            call()
            times.append(time.perf_counter())
        exact, index, encoding = np.diff(times).tolist()
        return exact, index, encoding

    found = []
    for users in batches:
        rounds: list[tuple[float, float, float]] = []
        began = time.perf_counter()
        while len(rounds) <= _ROUNDS and time.perf_counter() - began < _SECONDS:
            rows = (np.arange(users) + len(rounds) * users) % len(histories)
            rounds.append(seconds(histories.take(rows)))
        timed = rounds[1:] or rounds  # the first calls are slower
        exact, index, encoding = map(statistics.median, zip(*timed, strict=True))
        even = None
        if exact > encoding:
            # Exact search takes a time for each item, besides encoding, which both do.
            even = round(new_scorer().num_items * max(0.0, index - encoding) / (exact - encoding))
        use = "index" if exact / index >= FASTER else "exact"
        milliseconds = 1e3 * exact / users, 1e3 * index / users
        found.append(SearchTime(users, *milliseconds, exact / index, even, use))
    return found
