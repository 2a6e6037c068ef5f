"""An approximate index of a bundle's items (faiss, of the extra ann), in a folder of its own.

Which items are found is approximate; their scores and order are the model's. No file of faiss is
kept: the folder has the directions of the lists, and the vectors are taken from the bundle.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from recsys.data.histories import PAD, Float32s, Histories, Int32s
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, checked_path, install_hint
from recsys.evaluation.held_out import find_holdout
from recsys.folders import FolderManifest, new_folder, tree_sha256
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.inference.ranking import check_numbers, no_items, top_k
from recsys.inference.scorer import Scorer, Seen, TopItems
from recsys.serving.bundle import ModelBundle, for_evaluation

if TYPE_CHECKING:
    import faiss

_DIRECTIONS = "directions.safetensors"
STATES = 64 << 20
"""Bytes of encoded histories that are kept from a search to the scoring of what it found."""
_HISTORIES, _USERS = 500, 256
"""Histories that lists are chosen for and measured on; users who are searched for together."""
_QUERIES_PER_THREAD = 16
"""torch and faiss take the cores from each other: few queries are done before a second thread could
help."""


class IndexManifest(FolderManifest):
    """The manifest of an index."""

    noun: ClassVar[str] = "an index of items"
    remedy: ClassVar[str] = "make it again with recsys index"

    format: Literal["recsys.index"] = "recsys.index"
    format_version: int = 2
    bundle: str
    """The SHA-256 of the checksums of the bundle's files."""
    probes: int
    """The number of lists that a search reads."""


def build_index(vectors: Float32s, directions: Float32s | None = None) -> faiss.IndexIVFFlat:
    """Put items, one row each [I, D], into lists around directions [L, D]: IVF, by inner products.

    A search compares a query with all directions, and with the items of the best ``nprobe`` lists.
    If there are no directions, about 2 √I of length 1 are found by spherical k-means.
    """
    try:
        import faiss  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise InputError(f"an index of items {install_hint(error) or error}") from error
    count, width = vectors.shape
    size = min(count, round(2 * math.sqrt(count))) if directions is None else len(directions)
    nearest = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFFlat(nearest, width, size, faiss.METRIC_INNER_PRODUCT)
    index.cp.spherical, index.cp.niter, index.cp.seed = True, 10, 1234
    index.cp.min_points_per_centroid = 1  # else few items are a warning
    index.cp.max_points_per_centroid = 64
    faiss.omp_set_num_threads(torch.get_num_threads())
    if directions is None:
        index.train(vectors)
    else:
        nearest.add(directions)
        index.is_trained = True
    index.add(vectors)
    return index


def open_index(path: str | os.PathLike[str], bundle: ModelBundle) -> faiss.IndexIVFFlat:
    """Open the index of a bundle that `make_index` wrote; that of another model is refused."""
    folder = checked_path(path)

    def load(manifest: IndexManifest) -> faiss.IndexIVFFlat:
        if bundle.num_items != bundle.manifest.num_items:
            raise InputError(f"{folder}: has no items that are newer than the model")
        if manifest.bundle != tree_sha256(bundle.manifest.files):
            raise InputError(
                f"{folder}: an index of another model than {bundle.path}; {manifest.remedy}"
            )
        vectors = _vectors(query_encoder(bundle))
        directions = load_file(folder / _DIRECTIONS)["directions"]
        if not (  # faiss would read memory that is not its own
            directions.dtype == np.float32
            and directions.shape[1:] == vectors.shape[1:]
            and 1 <= manifest.probes <= len(directions)
            and np.isfinite(directions).all()
        ):
            raise InputError(f"{folder / _DIRECTIONS}: does not fit the model; {manifest.remedy}")
        index = build_index(vectors, directions)
        index.nprobe = manifest.probes
        return index

    return IndexManifest.load(folder, load)


@dataclass(frozen=True, slots=True, eq=False)
class IndexedScorer:
    """The scores of another scorer; its best items are found by an index."""

    exact: Scorer
    """Answers users for whom the index finds too few items, because the others were seen."""
    ranker: Scorer
    encoder: ModelScorer
    """Turns histories into the queries of the index."""
    index: faiss.IndexIVFFlat
    retrieve: int | None = None
    """How many items are found for the ranker; if None, the k that are wanted."""

    @property
    def num_items(self) -> int:
        return self.exact.num_items

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        """See `Scorer.score`; exact."""
        return self.exact.score(histories, candidates)

    def top_k(self, histories: Histories, k: int, seen: Seen) -> TopItems:
        """See `recsys.inference.ranking.top_k`, which calls it; no history may be empty."""
        items, values = no_items(len(histories), k)
        count = min(self.retrieve or k, self.num_items)
        for start in range(0, len(histories), _USERS):
            found = self._find(histories[start : start + _USERS], count, seen)
            full = (found != PAD).all(axis=1)
            if len(rows := start + np.flatnonzero(full)):
                found = np.sort(found[full], axis=1)  # equal scores in the order of their tokens
                scores = self.ranker.score(histories.take(rows), found)
                check_numbers(self.ranker, scores)
                best, order = scores.sort(dim=1, descending=True, stable=True)
                columns, width = order[:, :k].cpu().numpy(), min(k, count)
                items[rows, :width] = np.take_along_axis(found, columns, axis=1)
                values[rows, :width] = best[:, :k].cpu().numpy()
            if len(rows := start + np.flatnonzero(~full)):
                items[rows], values[rows] = top_k(self.exact, histories.take(rows), k, seen)
        return items, values

    def _find(self, histories: Histories, count: int, seen: Seen) -> Int32s:
        """Find items [B, N] that may be recommended, in any order; PAD where there are fewer."""
        import faiss  # noqa: PLC0415 - an extra

        queries = self.encoder.states(histories).float().cpu().numpy()
        width = self.num_items + 1
        known = np.unique(histories.users * width + histories.items)
        if seen == "allow":
            known = known[:0]
        most = count + int(np.bincount(known // width, minlength=1).max())
        # Of this thread: a server's thread begins with all cores, whatever torch may use.
        threads = min(torch.get_num_threads(), 1 + len(queries) // _QUERIES_PER_THREAD)
        faiss.omp_set_num_threads(threads)
        _, rows = self.index.search(np.ascontiguousarray(queries), min(most, self.num_items))
        found = (rows + 1).astype(np.int32)  # faiss fills with -1
        found[np.isin(np.arange(len(histories))[:, None] * width + found, known)] = PAD
        order = np.argsort(found == PAD, axis=1, kind="stable")  # what is left, best first
        return np.take_along_axis(found, order, axis=1)[:, :count]


def _vectors(encoder: ModelScorer) -> Float32s:
    return np.ascontiguousarray(encoder.vectors().float().cpu().numpy())


def query_encoder(bundle: ModelBundle) -> ModelScorer:
    """Return what turns histories into queries, and items into vectors, for an index.

    Of a model with target attention or counts that is the dot product, its first part.
    """
    longest, head = bundle.experiment.model.max_sequence_length, bundle.model.head.dot_product
    return ModelScorer(bundle.model, longest, head, bundle.states)


def needs_ranking(bundle: ModelBundle) -> bool:
    """Whether scores are more than the dot products that an index finds."""
    return bundle.model.head.attends or bundle.count_ensemble is not None


def make_index(
    bundle: ModelBundle,
    dataset: PreparedDataset,
    out: str | os.PathLike[str],
    *,
    recall: float = 0.98,
    k: int | None = None,
) -> dict[str, Any]:
    """Write an index of the items of a bundle, and return its sizes and its recall.

    As few lists are searched as find that share of the k best items by the dot product, 10 or, with
    target attention or counts, 200, after some histories before test targets of the dataset; the
    recall is that of others.

    Raises:
        InputError: the bundle holds a baseline; see `for_evaluation`; k is larger than the
            catalogue; or faiss is not installed.
    """
    exact = query_encoder(replace(bundle, states=StateCache(STATES)))
    k = min(bundle.num_items, 200 if needs_ranking(bundle) else 10) if k is None else k
    IndexManifest.previous(Path(out))  # before the work
    request_time = bundle.experiment.evaluation.request_time
    holdout = find_holdout(for_evaluation(bundle, dataset, "test"), "test", request_time)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(holdout.histories.lengths))
    rows, seen = rows[:_HISTORIES], bundle.experiment.evaluation.seen
    halves = [holdout.histories.take(rows[start::2] if len(rows) > 1 else rows) for start in (0, 1)]
    exact_lists = [top_k(exact, half, k, seen)[0] for half in halves]
    index = build_index(_vectors(exact))

    def found(half: int, probes: int) -> float:
        index.nprobe = probes
        best = exact_lists[half]
        items, _ = top_k(IndexedScorer(exact, exact, exact, index), halves[half], k, seen)
        both = (best[:, :, None] == items[:, None, :]).any(axis=2) & (best != PAD)
        return float(both.sum() / max(1, (best != PAD).sum()))

    size = index.nlist
    choices = np.unique(np.geomspace(1, size, 40).round().astype(int)).tolist()
    enough = bisect_left(choices[:-1], True, key=lambda some: found(0, some) >= recall)
    probes = choices[enough]
    facts = {"k": k, "recall": found(1, probes), "histories": len(halves[1])}
    with new_folder(Path(out)) as folder:
        directions = index.quantizer.reconstruct_n(0, size)
        save_file({"directions": directions}, folder / _DIRECTIONS)
        digest = tree_sha256(bundle.manifest.files)
        IndexManifest(bundle=digest, probes=probes).write(folder)
    return {"items": bundle.num_items, "lists": size, "probes": probes, **facts}
