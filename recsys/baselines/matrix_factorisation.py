"""Matrix factorisation: the dot product of item embeddings from a truncated SVD.

PureSVD (Cremonesi, Koren, Turrin, RecSys 2010) with the scaled item columns of EigenRec
(Nikolakopoulos et al., 2019) and a recency decay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.baselines.counts import (
    CountScorer,
    ages,
    are_few,
    by_popularity_if_empty,
    item_counts,
    item_values,
    pick_candidates,
    weighted_histories,
)
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True)
class MatrixFactorisationSettings:
    """How the matrix is weighted and truncated; chosen on validation of ML-1M and Beauty.

    PureSVD as published is ``decay=1, popularity_power=0, spectrum_power=0`` with a dim
    tuned for each log.
    """

    dim: int = 512
    """D, the width of the embeddings; smaller if the matrix has a smaller rank."""
    decay: float = 0.75
    """Weight of each item of a history relative to the next newer one. With 1 the order does not
    matter."""
    popularity_power: float = 0.3
    """The column of an item with n users is scaled by n ** -popularity_power, so that bestsellers
    do not dominate the first dimensions (1 - 2 * popularity_power is EigenRec's d)."""
    spectrum_power: float = 0.5
    """Dimension k is scaled by its singular value ** spectrum_power. Above 0, the last dimensions
    count little, so a large D does no harm."""

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"dim must be at least 1, not {self.dim}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, not {self.decay}")


@dataclass(frozen=True, slots=True, eq=False)
class MatrixFactorisation(CountScorer):
    """Scores candidate c ``(sum_j w(j) v[h_j]) . v[c]``.

    h_1 is the newest item of the history, ``w(j) = decay ** (j - 1)``, and the v are the right
    singular vectors of the user-item matrix. Users have no vectors: a history is the sum of its
    items, so new users are scored like any other. An empty history is scored by popularity.
    """

    item_vectors: NDArray[np.float64]
    """v, by item token [I + 1, D]."""
    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""
    settings: MatrixFactorisationSettings

    @classmethod
    def fit(
        cls,
        histories: Histories,
        num_items: int,
        settings: MatrixFactorisationSettings | None = None,
    ) -> MatrixFactorisation:
        """Factorise the binary user-item matrix of the training histories."""
        settings = settings or MatrixFactorisationSettings()
        vectors = _item_vectors(histories, num_items, settings)
        return cls(vectors, item_counts(histories, num_items), settings)

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C]."""
        weights = self.settings.decay ** ages(histories).astype(np.float64)
        users = weighted_histories(histories, weights, self.num_items) @ self.item_vectors
        vectors = self.item_vectors
        if candidates is None:
            scores: NDArray[np.float64] = users @ vectors.T
        elif are_few(candidates, self.num_items):
            scores = np.empty(candidates.shape)
            for user, own in enumerate(candidates):
                scores[user] = vectors[own] @ users[user]
        else:
            scores = pick_candidates(
                lambda batch: users[batch] @ vectors.T, candidates, self.num_items
            )
        return by_popularity_if_empty(scores, histories, item_values(self.counts, candidates))


def _item_vectors(
    histories: Histories, num_items: int, settings: MatrixFactorisationSettings
) -> NDArray[np.float64]:
    """Return scaled right singular vectors of the scaled user-item matrix [I + 1, D]."""
    # An extra, which fitting needs and scoring does not.
    from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]

    if not len(histories.items):
        return np.zeros((num_items + 1, 0))
    matrix = weighted_histories(histories, np.ones(len(histories.items)), num_items)
    users = np.bincount(matrix.indices, minlength=num_items + 1)
    scale = np.maximum(users, 1) ** -settings.popularity_power
    matrix.data = scale[matrix.indices]
    svd = TruncatedSVD(min(settings.dim, num_items), random_state=0)
    # scikit-learn divides by the variance of the matrix: 0 if all users have the same items.
    with np.errstate(divide="ignore", invalid="ignore"):
        svd.fit(matrix)
    singular = svd.singular_values_
    # Beyond the rank of the matrix the vectors are arbitrary: noise.
    real = singular > singular[0] * max(matrix.shape) * np.finfo(np.float64).eps
    vectors: NDArray[np.float64] = (
        svd.components_[real].T * singular[real] ** settings.spectrum_power
    )
    return vectors
