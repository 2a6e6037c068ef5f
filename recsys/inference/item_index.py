"""The best items by way of an approximate index (faiss, of an extra), with exact scores.

It pays for single requests over some 380,000 items or more; users who are asked about together are
answered faster without.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD, Histories
from recsys.errors import InputError, install_hint
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import NotANumberError, no_items, top_k
from recsys.inference.scorer import Scorer, Seen, TopItems

if TYPE_CHECKING:
    import faiss

_QUERIES_PER_THREAD = 16
"""torch and faiss take the cores from each other: few queries are done before a second thread could
help."""
_USERS = 256  # that are searched for together


@dataclass(frozen=True, slots=True, eq=False)
class ItemIndex:
    """Finds the items whose vectors have the largest dot products with a query.

    Items are in lists around L directions (spherical k-means; IVF in faiss). A search compares the
    query with all L directions and with the items of the best ``probes`` lists.
    """

    directions: NDArray[np.float32]
    """Shape [L, D], each of length 1."""
    lists: NDArray[np.int32]
    """Shape [I]: the list of each item, 0 to L - 1; entry i is item token i + 1."""
    probes: int
    searched: faiss.IndexIVFFlat

    @classmethod
    def build(cls, vectors: NDArray[np.float32], probes: int = 1) -> ItemIndex:
        """Divide items, one row each [I, D], into about 2 √I lists; a search reads ``probes``.

        Raises:
            InputError: faiss is not installed.
        """
        faiss = _faiss()
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        count, width = vectors.shape
        settings = faiss.ClusteringParameters()
        settings.spherical, settings.niter, settings.seed = True, 10, 1234
        settings.min_points_per_centroid = 1  # else few items are a warning
        settings.max_points_per_centroid = 64
        clusters = faiss.Clustering(width, min(count, round(2 * math.sqrt(count))), settings)
        nearest = faiss.IndexFlatIP(width)
        faiss.omp_set_num_threads(torch.get_num_threads())
        clusters.train(vectors, nearest)
        directions = faiss.vector_to_array(clusters.centroids).reshape(-1, width).copy()
        lists = nearest.search(vectors, 1)[1][:, 0].astype(np.int32)
        return cls.of(vectors, directions, lists, probes)

    @classmethod
    def of(
        cls,
        vectors: NDArray[np.float32],
        directions: NDArray[np.float32],
        lists: NDArray[np.int32],
        probes: int,
    ) -> ItemIndex:
        """Put items, one row each [I, D], into the lists that `build` found; errors as there."""
        faiss = _faiss()
        count, width = directions.shape
        nearest = faiss.IndexFlatIP(width)
        nearest.add(np.ascontiguousarray(directions))
        searched = faiss.IndexIVFFlat(nearest, width, count, faiss.METRIC_INNER_PRODUCT)
        rows, in_lists = np.ascontiguousarray(vectors, dtype=np.float32), lists.astype(np.int64)
        searched.add_core(len(rows), faiss.swig_ptr(rows), None, faiss.swig_ptr(in_lists))
        return cls(directions, lists, probes, searched)

    @property
    def num_items(self) -> int:
        """The number of items, I."""
        return len(self.lists)

    @property
    def items_read(self) -> float:
        """The number of items that a search compares with the query, on average."""
        return self.num_items * self.probes / len(self.directions)

    def reading(self, probes: int) -> ItemIndex:
        """Return the same index, which reads another number of lists."""
        return replace(self, probes=min(probes, len(self.directions)))

    def find(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int32]:
        """Find items [B, count] with large dot products with queries [B, D], the largest first.

        PAD fills the end where the lists have fewer.
        """
        faiss = _faiss()
        settings = faiss.SearchParametersIVF()
        settings.nprobe = self.probes
        # Of this thread: a server's thread begins with all cores, whatever torch may use.
        threads = min(torch.get_num_threads(), 1 + len(queries) // _QUERIES_PER_THREAD)
        faiss.omp_set_num_threads(threads)
        rows = np.ascontiguousarray(queries, dtype=np.float32)
        _, indices = self.searched.search(rows, count, params=settings)
        return (indices + 1).astype(np.int32)  # faiss fills with -1


def _faiss() -> ModuleType:
    try:
        import faiss  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise InputError(f"an index of items {install_hint(error) or error}") from error
    return faiss


@dataclass(frozen=True, slots=True, eq=False)
class IndexedScorer:
    """The scores of another scorer; its best items are found by an index. A `RankingScorer`.

    Which items are found is approximate, their scores and order are exact. Where the index finds
    too few items for a user, because the others were seen, the exact scorer answers.
    """

    exact: Scorer
    """Answers users whom the index cannot."""
    ranker: Scorer
    encoder: ModelScorer
    """Turns histories into the queries of the index."""
    index: ItemIndex
    retrieve: int | None = None
    """How many items are found for the ranker; if None, the k that are wanted."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.exact.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; exact."""
        return self.exact.score(histories, candidates)

    def top_k(self, histories: Histories, k: int, seen: Seen) -> TopItems:
        """See `recsys.inference.ranking.top_k`."""
        items, values = no_items(len(histories), k)
        answered = np.zeros(len(histories), dtype=bool)
        count = min(k if self.retrieve is None else self.retrieve, self.num_items)
        order = np.argsort(histories.lengths, kind="stable")  # of similar length together
        order = order[histories.lengths[order] > 0]
        for start in range(0, len(order), _USERS):
            rows = order[start : start + _USERS]
            found = self._find(histories.take(rows), count, seen)
            full = (found != PAD).all(axis=1)
            if len(done := rows[full]):
                best = slice(min(k, count))
                ranked = self._rank(histories.take(done), found[full], k)
                items[done, best], values[done, best] = ranked
            answered[done] = True
        if len(left := np.flatnonzero(~answered)):
            items[left], values[left] = top_k(self.exact, histories.take(left), k, seen)
        return items, values

    def _find(self, histories: Histories, count: int, seen: Seen) -> NDArray[np.int32]:
        """Find items [B, N] that may be recommended, in any order; PAD where there are fewer."""
        queries = self.encoder.states(histories).float().cpu().numpy()
        if seen == "allow":
            return self.index.find(queries, count)
        width = self.num_items + 1
        known = np.unique(histories.users * width + histories.items)
        more = np.bincount(known // width, minlength=len(histories)).max()
        most = min(count + int(more), self.num_items)
        found = self.index.find(queries, most)
        pairs = np.arange(len(histories))[:, None] * width + found
        found[np.isin(pairs, known)] = PAD
        order = np.argsort(found == PAD, axis=1, kind="stable")  # what is left, best first
        return np.take_along_axis(found, order, axis=1)[:, :count]

    def _rank(self, histories: Histories, found: NDArray[np.int32], k: int) -> TopItems:
        """Return the k best of found items [B, N], and their scores, as `top_k` does."""
        found = np.sort(found, axis=1)  # so that equal scores are in the order of their tokens
        scores = self.ranker.score(histories, found)
        if scores.isnan().any():
            raise NotANumberError("the model's scores are NaN: did its training diverge?")
        best, order = scores.sort(dim=1, descending=True, stable=True)
        order, best = order[:, :k].cpu(), best[:, :k].cpu()
        return np.take_along_axis(found, order.numpy(), axis=1), best.numpy()


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
