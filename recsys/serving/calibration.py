"""Calibrated probabilities: scores divided by a temperature that is fitted on validation.

Guo et al. 2017, "On calibration of modern neural networks" (temperature scaling).
"""

from collections.abc import Iterator

import numpy as np
import polars as pl
import torch
from torch import Tensor

from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.inference.scorer import Scorer, user_batches
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories

CALIBRATING = 500
"""Histories that a temperature is fitted on, drawn at random if there are more."""
_STEPS, _PRECISION = 30, 1e-4
_FARTHEST, _LARGEST = 4.0, 1e6
"""The largest factor by which a step changes the temperature, and the largest temperature."""


def temperature_of(scorer: Scorer, holdout: Holdout, seed: int) -> float | None:
    """Return the temperature with the least log loss on targets, drawn by the seed; None without.

    The log loss is convex in 1 / temperature: Newton's method finds its minimum.
    """
    holdout = holdout.sample(CALIBRATING, seed)
    if not len(holdout.targets):
        return None
    inverse = 1.0
    for _ in range(_STEPS):
        slope = curvature = 0.0
        for scores, target_scores in _scores(scorer, holdout):
            probabilities = (scores * inverse).softmax(dim=1)
            known = scores.masked_fill(scores == -torch.inf, 0.0)
            mean = (probabilities * known).sum(dim=1)
            slope += float((mean - target_scores).sum())
            curvature += float((probabilities * (known - mean[:, None]) ** 2).sum())
        if curvature <= 0:  # all scores are equal, or the target of each history stands out
            break
        lowest = max(inverse / _FARTHEST, 1 / _LARGEST)
        highest = min(inverse * _FARTHEST, _LARGEST)
        before, inverse = inverse, min(max(inverse - slope / curvature, lowest), highest)
        if abs(inverse / before - 1) < _PRECISION:
            break
    return 1 / inverse


@torch.inference_mode()
def _scores(scorer: Scorer, holdout: Holdout) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the scores of all items [B, I] and of the targets [B] that are not -inf."""
    for batch in user_batches(len(holdout.histories), scorer.num_items):
        _, own = holdout.after(np.r_[batch])
        scores = scorer.score(own.histories).double().cpu()[torch.from_numpy(own.history_rows)]
        targets = scores.gather(1, torch.from_numpy(own.targets.astype(np.int64))[:, None])[:, 0]
        possible = targets > -torch.inf
        yield scores[possible, 1:], targets[possible]


def with_probabilities(
    bundle: ModelBundle, queries: UserHistories, answer: pl.DataFrame
) -> pl.DataFrame:
    """Add the column probability to an answer; null where the scores are counts of interactions."""
    temperature = bundle.manifest.temperature
    if temperature is None:
        raise InputError(
            f"{bundle.path}: has no temperature, which probabilities need: train the model again"
        )
    rows = np.flatnonzero(queries.histories.lengths)
    totals = np.full(len(queries.user_ids), np.nan)
    with torch.inference_mode():
        for batch in user_batches(len(rows), bundle.num_items):
            chosen = rows[batch]
            scores = bundle.scorer.score(queries.histories.take(chosen))
            totals[chosen] = (scores / temperature).logsumexp(dim=1).cpu().numpy()
    users = pl.DataFrame({"user_id": queries.user_ids, "__total": totals})
    joined = answer.join(users, on="user_id", how="left", maintain_order="left")
    probability = (pl.col("score") / temperature - pl.col("__total")).exp().fill_nan(None)
    return joined.with_columns(probability=probability.cast(pl.Float32)).drop("__total")
