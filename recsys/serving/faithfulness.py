"""Are explanations true? Take the purchase away that explains a score most, and score again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.errors import InputError
from recsys.evaluation.metrics.intervals import Interval, bootstrap_means
from recsys.inference.ranking import rank_targets, top_k
from recsys.inference.scorer import Scorer
from recsys.serving.explain import explain, explained_by_removal
from recsys.serving.fallback import seen_policy
from recsys.serving.history_parts import chunks
from recsys.serving.ids import id_series
from recsys.serving.inputs import RawHistories, UserHistories
from recsys.serving.recommender import Recommender
from recsys.serving.time_scale import RequestTime

SAMPLE = 1_000
"""Users whose explanations are checked."""


@dataclass(frozen=True, slots=True)
class Faithfulness:
    """What the score and the rank of the best recommendation lose without one purchase.

    Means over histories, with 95% bootstrap intervals.
    """

    histories: int
    """The number of histories."""
    seed: int
    """The seed of the users, of the random purchases and of the intervals."""
    score_drop_top: Interval
    """Score lost without the purchase of the largest contribution."""
    score_drop_random: Interval
    """Score lost without another purchase, drawn at random."""
    rank_drop_top: Interval
    """Ranks lost without the purchase of the largest contribution."""
    rank_drop_random: Interval
    """Ranks lost without the other purchase."""
    top_lowers_more: Interval
    """The share of histories in which the first lowers the score more than the second."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per measure: its name, mean, low and high."""
        measures = {name: getattr(self, name) for name in MEASURES}
        return [{"measure": name, **value._asdict()} for name, value in measures.items()]


MEASURES = (
    *("score_drop_top", "score_drop_random", "rank_drop_top", "rank_drop_random"),
    "top_lowers_more",
)


def measure_faithfulness(
    recommender: Recommender,
    histories: RawHistories | UserHistories | None = None,
    *,
    users: Iterable[Any] | None = None,
    sample: int = SAMPLE,
    seed: int = 0,
    at: RequestTime | None = None,
) -> Faithfulness:
    """Measure whether the purchases that explain a recommendation are those that cause it.

    For each user, the model's best item by its own rules on seen items is explained
    (`Recommender.explain`). Its score and its rank among all items are computed again without the
    purchase of the largest contribution, and again without one of the other purchases that the
    model reads, drawn with equal probability. In place of one taken away, the model may read an
    older one. Users of fewer than two purchases are left out.

    Args:
        recommender: a model with target attention.
        histories: see `Recommender.read_histories`; all of them are explained.
        users: in their place, ids of users of the dataset; all if None.
        sample: how many of these are drawn at random.
        seed: of the draws and of the intervals.
        at: the request time.

    Raises:
        InputError: the scores are explained by removal; no user has two purchases; see `explain`
            and `Recommender.read_histories`.
    """
    generator = np.random.default_rng(seed)
    if histories is None:
        users = _drawn(recommender, users, sample, generator)
    bundle = recommender.bundle
    if explained_by_removal(bundle):
        raise InputError(
            f"{bundle.path}: its scores are explained by taking purchases away, which cannot be "
            "checked by doing so: faithfulness is for target attention"
        )
    queries = recommender.read_histories(histories, users)
    queries = queries.with_request_time(bundle.times, at, bundle.time_scale)
    scorer, seen = bundle.scorer, seen_policy(bundle, None)
    several = np.flatnonzero(queries.histories.lengths > 1)
    best = np.full(len(queries.user_ids), PAD, dtype=np.int32)
    if len(several):
        best[several] = top_k(scorer, queries.histories.take(several), 1, seen)[0][:, 0]
    rows, read, top, other = [], [], [], []
    for row, user in enumerate(chunks(queries, 1)):
        if best[row] == PAD:
            continue
        parts = explain(bundle, user, bundle.vocabulary.ids[int(best[row]) - 1], at=at)
        if len(parts) < 2:
            continue
        place = int(parts["contribution"].to_numpy().argmax())
        random = int(generator.integers(len(parts) - 1))
        rows.append(row)
        read.append(len(parts))
        top.append(place)
        other.append(random + (random >= place))
    if not rows:
        raise InputError("faithfulness: no user has two purchases that the model reads")
    chosen = queries.histories.take(np.array(rows))
    starts = chosen.offsets[1:] - np.array(read)  # of what the model reads
    changes = _Changes(scorer, chosen, best[rows])
    score_top, rank_top = changes.without(starts + np.array(top))
    score_other, rank_other = changes.without(starts + np.array(other))
    values = np.array([score_top, score_other, rank_top, rank_other, score_top > score_other])
    means = bootstrap_means(values, np.ones(len(rows), dtype=np.int64), generator)
    return Faithfulness(len(rows), seed, *means)


def _drawn(
    recommender: Recommender,
    users: Iterable[Any] | None,
    sample: int,
    generator: np.random.Generator,
) -> pl.Series | None:
    """Return at most so many of the users, in their order; None if there are none to draw from."""
    if users is None:
        if recommender.dataset is None:
            return None
        users = recommender.dataset.user_ids
    ids = id_series(users, "users")
    if len(ids) <= sample:
        return ids
    return ids.gather(np.sort(generator.choice(len(ids), sample, replace=False)))


class _Changes:
    """What the score and the rank of an item lose when a purchase is taken away.

    Args:
        scorer: scores all items.
        histories: the histories of B users.
        items: the token of each user's item [B].
    """

    def __init__(self, scorer: Scorer, histories: Histories, items: NDArray[np.int32]) -> None:
        self._scorer, self._histories, self._items = scorer, histories, items
        self._score, self._rank = self._measure(histories)

    def without(self, entries: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return lost score and lost ranks [B] without one entry of each history."""
        items = self._histories.items.copy()
        items[entries] = PAD
        users = np.arange(len(self._histories))
        score, rank = self._measure(replace(self._histories, items=items).take(users))
        return self._score - score, rank - self._rank

    def _measure(self, histories: Histories) -> tuple[NDArray[Any], NDArray[Any]]:
        with torch.inference_mode():
            scores = self._scorer.score(histories, self._items[:, None])[:, 0]
        ranks = rank_targets(self._scorer, histories, self._items, "allow")
        return scores.cpu().numpy().astype(np.float64), ranks.astype(np.float64)
