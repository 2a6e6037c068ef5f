"""An approximate index of items: a search reads the lists of items next to the query only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.errors import InputError
from recsys.extras import install_hint

if TYPE_CHECKING:
    import faiss

_ROUNDS, _POINTS_PER_LIST, _SEED = 10, 64, 1234
_QUERIES_PER_THREAD = 16
"""torch and faiss each have threads of their own, which take the cores from each other for moments:
few queries are done before a second thread could help."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemIndex:
    """Finds the items whose vectors have the largest dot products with a query.

    Items are in lists around L directions (spherical k-means; IVF in faiss). A search compares the
    query with all L directions and with the items of the best ``probes`` lists. With all lists it
    is exact.
    """

    directions: NDArray[np.float32]
    """Shape [L, D], each of length 1."""
    lists: NDArray[np.int32]
    """Shape [I]: the list of each item, 0 to L - 1; entry i is item token i + 1."""
    probes: int
    """The number of lists that a search reads."""
    searched: faiss.IndexIVFFlat
    """The lists, with the vectors of their items."""

    @classmethod
    def build(cls, vectors: NDArray[np.float32], probes: int = 1) -> ItemIndex:
        """Divide items into about 2 √I lists.

        Args:
            vectors: one row per item [I, D].
            probes: the number of lists that a search reads.

        Raises:
            InputError: faiss is not installed.
        """
        _check_installed()
        import faiss  # noqa: PLC0415 - an extra

        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        count, width = vectors.shape
        settings = faiss.ClusteringParameters()
        settings.spherical, settings.niter, settings.seed = True, _ROUNDS, _SEED
        settings.min_points_per_centroid = 1  # else few items are a warning
        settings.max_points_per_centroid = _POINTS_PER_LIST
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
        """Put items into the lists that `build` found.

        Args:
            vectors: one row per item [I, D].
            directions: see `ItemIndex`.
            lists: see `ItemIndex`.
            probes: see `ItemIndex`.

        Raises:
            InputError: faiss is not installed.
        """
        _check_installed()
        import faiss  # noqa: PLC0415 - an extra

        count, width = directions.shape
        nearest = faiss.IndexFlatIP(width)
        nearest.add(np.ascontiguousarray(directions))
        searched = faiss.IndexIVFFlat(nearest, width, count, faiss.METRIC_INNER_PRODUCT)
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        places = lists.astype(np.int64)
        searched.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(places))
        return cls(directions, lists, probes, searched)

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.lists)

    @property
    def items_read(self) -> float:
        """The number of items that a search compares with the query, on average."""
        return self.num_items * self.probes / len(self.directions)

    def reading(self, probes: int) -> ItemIndex:
        """Return the same index, which reads another number of lists."""
        return replace(self, probes=min(probes, len(self.directions)))

    def find(
        self, queries: NDArray[np.float32], count: int, allowed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int32]:
        """Find items with large dot products, the largest first.

        Where few items are allowed, more lists are read, so that a search compares as many of them.

        Args:
            queries: shape [B, D].
            count: the number of items to find, N.
            allowed: whether each item token may be found [I + 1]; all if None.

        Returns:
            Item tokens [B, N]; PAD fills the end where the lists have fewer.
        """
        import faiss  # noqa: PLC0415 - an extra

        settings = faiss.SearchParametersIVF()
        settings.nprobe = self.probes
        if allowed is not None:  # bits and selector must live as long as the search
            some = max(1, int(np.count_nonzero(allowed[1:])))
            settings.nprobe = min(
                math.ceil(self.probes * self.num_items / some), len(self.directions)
            )
            bits = np.packbits(allowed[1:], bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            settings.sel = selector
        # Of this thread: a server's thread begins with all cores, whatever torch may use.
        threads = min(torch.get_num_threads(), 1 + len(queries) // _QUERIES_PER_THREAD)
        faiss.omp_set_num_threads(threads)
        rows = np.ascontiguousarray(queries, dtype=np.float32)
        _, places = self.searched.search(rows, count, params=settings)
        return (places + 1).astype(np.int32)  # faiss fills with -1


def _check_installed() -> None:
    """Return if faiss can be imported.

    Raises:
        InputError: it cannot: one line for whoever opens an index, a server's worker included.
    """
    try:
        import faiss  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise InputError(f"an index of items {install_hint(error) or error}") from error
