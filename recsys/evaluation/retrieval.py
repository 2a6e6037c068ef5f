"""How many targets two-stage ranking finds, and what it costs in accuracy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from recsys.data.holdout import Holdout
from recsys.data.prepared import Part
from recsys.evaluation.tables.rank import evaluate
from recsys.inference.ranking import Seen
from recsys.inference.scorer import Scorer
from recsys.inference.two_stages import TwoStages


@dataclass(frozen=True, slots=True)
class RetrievalFigures:
    """What two stages find; all but the seconds are means over users."""

    retrieve: int
    """N; in one stage the size of the catalogue."""
    retrieved: float
    """Share of a user's targets that are among the N: the limit of any recall behind it."""
    recall_at_10: float
    ndcg_at_10: float
    seconds: float
    """For ranking all targets."""


def retrieval_figures(
    retriever: Scorer,
    ranker: Scorer,
    holdout: Holdout,
    part: Part,
    seen: Seen,
    sizes: Sequence[int],
) -> list[RetrievalFigures]:
    """What two stages find of the targets of a holdout for each N of ``sizes``, ascending.

    The last ones are those of the ranker in one stage; an N that is no smaller than the catalogue
    would be the same, and is left out.

    Raises:
        InputError: an N is below 1.
    """
    num_items = ranker.num_items
    stages: list[tuple[int, Scorer]] = [
        (size, TwoStages(retriever, ranker, size, seen))
        for size in sorted(set(sizes))
        if size < num_items
    ]
    figures = []
    for size, scorer in [*stages, (num_items, ranker)]:
        started = time.perf_counter()
        table = evaluate(scorer, holdout, part, seen)
        seconds = time.perf_counter() - started
        # A target that was not found has no rank, and one that was is among N: recall@N counts it.
        names = [f"recall_at_{size}", "recall_at_10", "ndcg_at_10"]
        retrieved, recall, ndcg = (float(table.values(name).mean()) for name in names)
        figures.append(RetrievalFigures(size, retrieved, recall, ndcg, seconds))
    return figures
