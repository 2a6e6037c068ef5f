"""An index of the items of a bundle, in a folder of its own: finds them without scoring all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from safetensors.numpy import load_file, save_file

from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError, checked_path
from recsys.evaluation.held_out import find_holdout
from recsys.folders.atomic import new_folder
from recsys.folders.digests import file_sha256, tree_sha256
from recsys.folders.manifest import FolderManifest
from recsys.inference.item_index import IndexedScorer, ItemIndex, choose_probes, recall_of
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Seen
from recsys.serving.bundle import ModelBundle, for_evaluation

_LISTS = "lists.safetensors"
STATES = 64 << 20
"""Bytes of encoded histories that are kept from a search to the scoring of what it found."""
_MOST_HISTORIES = 1000
_ROUNDS, _SECONDS = 25, 2.0
"""Calls that are timed, or seconds after which no more are."""


class IndexManifest(FolderManifest):
    """The manifest of an index."""

    noun: ClassVar[str] = "an index of items"
    remedy: ClassVar[str] = "make it again with recsys index"
    current_version: ClassVar[int] = 1

    format: Literal["recsys.index"] = "recsys.index"
    format_version: int = current_version
    bundle: str
    """The SHA-256 of the checksums of the bundle's files."""
    num_items: int
    probes: int
    """The number of lists that a search reads."""
    k: int
    recall: float
    """The share of the k best items that a search found."""


@dataclass(frozen=True, eq=False)
class BundleIndex:
    """An index of the items of a bundle.

    Only the lists are saved, and the vectors are taken from the bundle: no file of faiss is read,
    and an index cannot have other vectors than its model.
    """

    path: Path
    manifest: IndexManifest
    items: ItemIndex

    @classmethod
    def write(
        cls, path: Path, bundle: ModelBundle, items: ItemIndex, k: int, recall: float
    ) -> BundleIndex:
        """Write the folder of an index atomically; an earlier one there is replaced."""
        IndexManifest.previous(path)
        with new_folder(path) as folder:
            save_file({"directions": items.directions, "lists": items.lists}, folder / _LISTS)
            manifest = IndexManifest(
                bundle=tree_sha256(bundle.manifest.files),
                num_items=items.num_items,
                probes=items.probes,
                k=k,
                recall=recall,
                files={_LISTS: file_sha256(folder / _LISTS)},
            )
            manifest.write(folder)
        return cls(path, manifest, items)

    @classmethod
    def open(cls, path: str | os.PathLike[str], bundle: ModelBundle) -> BundleIndex:
        """Open the index of a bundle; that of another model is refused."""
        folder = checked_path(path)
        return IndexManifest.load(folder, lambda manifest: cls._load(folder, manifest, bundle))

    @classmethod
    def _load(cls, path: Path, manifest: IndexManifest, bundle: ModelBundle) -> BundleIndex:
        """Read the lists, and fill them with the vectors of the bundle."""
        if bundle.num_items != bundle.manifest.num_items:
            raise InputError(f"{path}: has no items that are newer than the model")
        if manifest.bundle != tree_sha256(bundle.manifest.files):
            raise InputError(
                f"{path}: an index of another model than {bundle.path}; {IndexManifest.remedy}"
            )
        vectors = query_encoder(bundle).vectors().float().cpu().numpy()
        tensors = load_file(path / _LISTS)
        directions, lists = tensors["directions"], tensors["lists"]
        if not (  # faiss would crash
            directions.shape[1:] == vectors.shape[1:]
            and lists.shape == vectors.shape[:1]
            and directions.dtype == np.float32
            and lists.dtype == np.int32
            and bool(np.isfinite(directions).all())
            and 0 <= lists.min() <= lists.max() < len(directions)
            and 1 <= manifest.probes <= len(directions)
        ):
            raise InputError(f"{path / _LISTS}: does not fit the model; {IndexManifest.remedy}")
        return cls(path, manifest, ItemIndex.of(vectors, directions, lists, manifest.probes))


def query_encoder(bundle: ModelBundle) -> ModelScorer:
    """Return what turns histories into queries, and items into vectors, for an index.

    With target attention that is the dot product, its first part. Counts are refused.
    """
    if bundle.trained is None or bundle.count_ensemble is not None:
        raise InputError(
            f"{bundle.path}: cannot be searched by an index: its counts are no dot products"
        )
    longest = bundle.experiment.model.max_sequence_length
    head, states = bundle.trained.head.dot_product, bundle.states
    return ModelScorer(bundle.trained, longest, head, trained=True, states=states)


def make_index(
    bundle: ModelBundle,
    dataset: PreparedDataset,
    out: str | os.PathLike[str],
    *,
    wanted: float = 0.98,
    k: int | None = None,
    part: Part = "test",
) -> tuple[BundleIndex, list[dict[str, Any]]]:
    """Write an index of the items of a bundle, and time it beside exact search.

    As few lists are searched as give the ``wanted`` recall of the k best items, 10 or, for target
    attention, 200, after histories before held-out targets of the dataset. The model is timed where
    it is, on the CPU or on a GPU; with target attention, its first stage alone.

    Returns:
        The index, and for 1, 8 and 64 users at a time the milliseconds per user of both searches,
        with sizes and the recall.

    Raises:
        InputError: see `query_encoder` and `for_evaluation`; k is larger than the catalogue; the
            folder cannot be written; or faiss is not installed.
    """
    exact = query_encoder(bundle)  # with target attention, of the first stage
    usual = 200 if bundle.model.head.attends else 10
    length = min(bundle.num_items, usual) if k is None else k
    if not 1 <= length <= bundle.num_items:
        raise InputError(f"k={k}: must be from 1 to {bundle.num_items}, the size of the catalogue")
    IndexManifest.previous(Path(out))  # before the work
    evaluated = for_evaluation(bundle, dataset, part)
    config = bundle.experiment.evaluation
    histories = find_holdout(evaluated, part, config.request_time).histories
    rows = np.random.default_rng(0).permutation(np.flatnonzero(histories.lengths))
    half = max(1, min(len(rows), _MOST_HISTORIES) // 2)
    first, second = histories.take(rows[:half]), histories.take(rows[half:_MOST_HISTORIES])
    second = second if len(second) else first

    started, seen = time.perf_counter(), bundle.manifest.protocol.seen
    vectors = exact.vectors()
    items = ItemIndex.build(vectors.float().cpu().numpy())
    built = time.perf_counter() - started

    def scorer(searched: ItemIndex) -> IndexedScorer:
        """Return a scorer that knows no history yet."""
        encoder = query_encoder(replace(bundle, states=StateCache(STATES)))
        return IndexedScorer(exact, encoder, encoder, searched)

    chosen = choose_probes(scorer(items), first, length, seen, wanted).index
    found = recall_of(scorer(chosen), second, length, seen)
    facts = {
        "items": items.num_items,
        "lists": len(items.directions),
        "probes": chosen.probes,
        "items_read": round(chosen.items_read),
        "k": length,
        "recall": found,
        "histories": len(second),
        "device": vectors.device.type,
        "build_seconds": built,
        "mib": vectors.numel() * 4 / 2**20,
    }
    times = [
        search_times(lambda: scorer(chosen), second, length, seen, users) | facts
        for users in (1, 8, 64)
    ]
    return BundleIndex.write(Path(out), bundle, chosen, length, found), times


def search_times(
    new_scorer: Callable[[], IndexedScorer], histories: Histories, k: int, seen: Seen, users: int
) -> dict[str, Any]:
    """Time both searches in turns, for a number of users at a time: medians, per user.

    ``new_scorer`` returns one that knows no history yet. No history may be empty; they are repeated
    where there are too few.
    """
    rounds: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(rounds) <= _ROUNDS and time.perf_counter() - began < _SECONDS:
        rows = histories.take((np.arange(users) + len(rounds) * users) % len(histories))
        scorer = new_scorer()
        started = time.perf_counter()
        top_k(scorer.exact, rows, k, seen)
        between = time.perf_counter()
        top_k(scorer, rows, k, seen)
        rounds.append((between - started, time.perf_counter() - between))
    exact, index = np.median(rounds[1:] or rounds, axis=0)  # the first calls are slower
    return {"users": users, "exact_ms": 1e3 * exact / users, "index_ms": 1e3 * index / users}
