"""Items that share users: nearest neighbours, EASE, matrix factorisation.

scikit-learn, of an extra, fits the first and the last; scoring needs none of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array

from recsys.baselines.counts import (
    CountScorer,
    Floats,
    Tokens,
    item_counts,
    pick_candidates,
    summed_votes,
    user_items,
    weighted_histories,
)
from recsys.data.histories import Float32s, Histories
from recsys.errors import InputError

_WORKING_MEMORY_MIB = 64
MAX_ITEMS = 20_000
"""Largest catalogue of EASE: the matrix of weights takes 1.6 GB, and twice that while fitting."""


@dataclass(frozen=True, slots=True)
class ItemKNNSettings:
    """How many neighbours an item has, and how the items of a history are weighted."""

    neighbours: int = 100
    decay: float = 0.8
    """Weight of each item of a history relative to the next newer one."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemKNN(CountScorer):
    """Scores candidate a ``sum_j decay ** (j - 1) cos(a, h_j)``, h_1 the newest item.

    The cosine compares the two items' sets of users in the training histories and counts if a is
    among the k nearest items of h_j. Source: Sarwar et al. 2001,
    https://doi.org/10.1145/371920.372071
    """

    similarities: csr_array
    """Cosines by item tokens [h, a]; only those of the nearest items are stored."""
    counts: Floats
    settings: ItemKNNSettings

    @classmethod
    def fit(cls, histories: Histories, num_items: int, settings: ItemKNNSettings) -> ItemKNN:
        """Find the neighbours of each item; repeated items of a user count once."""
        from sklearn import config_context  # type: ignore[import-untyped]
        from sklearn.neighbors import NearestNeighbors  # type: ignore[import-untyped]

        # PAD, which no user has, is at the largest distance.
        near = min(settings.neighbours, num_items)
        search = NearestNeighbors(n_neighbors=near, metric="cosine", algorithm="brute")
        with config_context(working_memory=_WORKING_MEMORY_MIB):
            search.fit(user_items(histories, num_items).T.tocsr())
            similarities = csr_array(search.kneighbors_graph(mode="distance"))
        similarities.data = np.maximum(1 - similarities.data, 0)
        similarities.eliminate_zeros()
        return cls(similarities, item_counts(histories, num_items), settings)

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        weights = self.settings.decay ** histories.ages.astype(np.float64)
        return summed_votes(histories, weights, self.similarities, candidates)


@dataclass(frozen=True, slots=True)
class EASESettings:
    """How strongly the weights are regularised."""

    l2: float = 300.0
    """λ: added to the number of users of each item; the larger, the smaller the weights."""


@dataclass(frozen=True, slots=True, eq=False)
class EASE(CountScorer):
    """Scores candidate a ``sum_j B[h_j, a]`` over the distinct items h_j of a history.

    B minimises ``|X - X B|² + λ |B|²`` under a zero diagonal, where X is the binary user-item
    matrix: ``B[b, a] = -P[b, a] / P[a, a]`` with ``P = (X'X + λ)⁻¹``. Source: Steck 2019,
    https://arxiv.org/abs/1905.03375
    """

    weights: Float32s
    """B, by item tokens [I + 1, I + 1]."""
    counts: Floats

    @classmethod
    def fit(cls, histories: Histories, num_items: int, settings: EASESettings) -> EASE:
        """Find the weights; an InputError if the catalogue is larger than `MAX_ITEMS`."""
        if num_items > MAX_ITEMS:
            raise InputError(
                f"ease: the catalogue has {num_items:,} items, more than {MAX_ITEMS:,}"
            )
        has = user_items(histories, num_items).astype(np.float32)
        together = (has.T @ has).toarray(order="C")
        together[np.diag_indices(num_items + 1)] += settings.l2
        factor = torch.linalg.cholesky(torch.from_numpy(together))
        inverse = torch.cholesky_inverse(factor, out=factor).numpy()
        # The inverse is symmetric and stored by columns: its transpose reads row by row.
        weights: Float32s = np.divide(inverse.T, -np.diag(inverse), out=together)
        np.fill_diagonal(weights, 0)
        return cls(weights, item_counts(histories, num_items))

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        # In float32 like the weights, which scipy would otherwise convert for each batch of users.
        has = user_items(histories, self.num_items).astype(np.float32)
        return pick_candidates(lambda users: has[users] @ self.weights, candidates, self.num_items)


@dataclass(frozen=True, slots=True)
class MatrixFactorisationSettings:
    """How the matrix is weighted and truncated; chosen on validation of ML-1M and Beauty.

    PureSVD as published is ``decay=1, popularity_power=0, spectrum_power=0`` with a tuned dim.
    """

    dim: int = 512
    """D, the width of the embeddings; smaller if the matrix has a smaller rank."""
    decay: float = 0.75
    """Weight of each item of a history relative to the next newer one."""
    popularity_power: float = 0.3
    """The column of an item with n users is scaled by n ** -popularity_power, so that bestsellers
    do not dominate the first dimensions (1 - 2 * popularity_power is EigenRec's d)."""
    spectrum_power: float = 0.5
    """Dimension k is scaled by its singular value ** spectrum_power. Above 0, the last dimensions
    count little, so a large D does no harm."""


@dataclass(frozen=True, slots=True, eq=False)
class MatrixFactorisation(CountScorer):
    """Scores candidate c ``(sum_j decay ** (j - 1) v[h_j]) . v[c]``, h_1 the newest item.

    The v are the right singular vectors of the user-item matrix: PureSVD (Cremonesi, Koren, Turrin,
    RecSys 2010) with the scaled item columns of EigenRec (Nikolakopoulos et al., 2019) and a
    recency decay. A new user is the sum of a history's items, like any other.
    """

    item_vectors: Floats
    """v, by item token [I + 1, D]."""
    counts: Floats
    settings: MatrixFactorisationSettings

    @classmethod
    def fit(
        cls, histories: Histories, num_items: int, settings: MatrixFactorisationSettings
    ) -> MatrixFactorisation:
        """Factorise the binary user-item matrix of the training histories."""
        from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]

        matrix = weighted_histories(histories, 1.0, num_items)
        users = np.bincount(matrix.indices, minlength=num_items + 1)
        matrix.data = (np.maximum(users, 1) ** -settings.popularity_power)[matrix.indices]
        svd = TruncatedSVD(min(settings.dim, num_items), random_state=0)
        # scikit-learn divides by the variance of the matrix: 0 if all users have the same items.
        with np.errstate(divide="ignore", invalid="ignore"):
            svd.fit(matrix)
        singular = svd.singular_values_
        # Beyond the rank of the matrix the vectors are arbitrary: noise.
        real = singular > singular[0] * max(matrix.shape) * np.finfo(np.float64).eps
        vectors = svd.components_[real].T * singular[real] ** settings.spectrum_power
        return cls(vectors, item_counts(histories, num_items), settings)

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        weights = self.settings.decay ** histories.ages.astype(np.float64)
        users = weighted_histories(histories, weights, self.num_items) @ self.item_vectors
        return pick_candidates(
            lambda batch: users[batch] @ self.item_vectors.T, candidates, self.num_items
        )
