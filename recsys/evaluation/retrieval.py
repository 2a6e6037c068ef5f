"""The share of targets that two-stage ranking finds, and its accuracy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from recsys.data.holdout import Holdout
from recsys.data.prepared import Part
from recsys.evaluation.tables import evaluate
from recsys.inference.scorer import Scorer, Seen
from recsys.inference.two_stages import TwoStages


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
    """Return the metrics of two stages for each N of ``sizes``, ascending.

    The last ones are those of the ranker in one stage; an N as large as the catalogue would be the
    same, and is skipped.

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
        retrieved, recall, ndcg = (float(table.values(name).mean()) for name in names)
        metrics.append(RetrievalMetrics(size, retrieved, recall, ndcg, seconds))
    return metrics
