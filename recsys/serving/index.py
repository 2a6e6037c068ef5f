"""An index of the items of a bundle, in a folder of its own: finds them without scoring all."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from safetensors.numpy import load_file, save_file

from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError, checked_path
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.search_metrics import SearchTime, choose_probes, recall_of, search_times
from recsys.folders.atomic import new_folder
from recsys.folders.digests import file_sha256, tree_sha256
from recsys.folders.manifest import FolderManifest
from recsys.inference.item_index import IndexedScorer, ItemIndex
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.serving.bundle import ModelBundle, for_evaluation

_LISTS = "lists.safetensors"
_STATES = 64 << 20
"""Bytes of encoded histories that are kept from a search to the scoring of what it found."""


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
        """Open the index of a bundle.

        Raises:
            InputError: the folder is no index, is damaged or of another model; the scores of the
                model are no dot products; or faiss is not installed.
        """
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

    With target attention that is the dot product, its first part.

    Raises:
        InputError: the model is a baseline, or has a count ensemble.
    """
    if bundle.trained is None or bundle.count_ensemble is not None:
        raise InputError(
            f"{bundle.path}: cannot be searched by an index: its counts are no dot products"
        )
    longest = bundle.experiment.model.max_sequence_length
    head, states = bundle.trained.head.dot_product, bundle.states
    return ModelScorer(bundle.trained, longest, head, trained=True, states=states)


_MOST_HISTORIES = 1000
_USERS_TOGETHER = (1, 8, 64)
_K, _K_OF_TWO_STAGES = 10, 200


@dataclass(frozen=True, slots=True, eq=False)
class MadeIndex:
    """An index that was written, and what was measured of it."""

    index: BundleIndex
    facts: dict[str, Any]
    """Sizes, the recall and the number of histories that it was measured on, the model's device."""
    times: list[SearchTime]

    @property
    def advice(self) -> str:
        """What was found, and which search to use, in two sentences."""
        faster = [f"{row.users:,}" for row in self.times if row.use == "index"]
        use = f"Use it for {' or '.join(faster)} users at a time" if faster else "Do not use it"
        return (
            "The index reads {probes:,} of {lists:,} lists, about {items_read:,} of {items:,} "
            "items, and finds {recall:.3f} of the {k} best items ({histories:,} histories). "
            "{use} on the {device}; else exact search is as fast."
        ).format(**self.facts, use=use)


def make_index(
    bundle: ModelBundle,
    dataset: PreparedDataset,
    out: str | os.PathLike[str],
    *,
    wanted: float = 0.98,
    k: int | None = None,
    part: Part = "test",
) -> MadeIndex:
    """Write an index of the items of a bundle, and time it beside exact search.

    As few lists are searched as give the ``wanted`` recall of the k best items, 10 or, for target
    attention, 200, after histories before held-out targets of the dataset. The model is timed where
    it is, on the CPU or on a GPU; with target attention, its first stage alone.

    Raises:
        InputError: see `query_encoder` and `for_evaluation`; k is larger than the catalogue; the
            folder cannot be written; or faiss is not installed.
    """
    exact = query_encoder(bundle)  # with target attention, of the first stage
    stages = bundle.model.head.attends
    length = min(bundle.num_items, _K_OF_TWO_STAGES if stages else _K) if k is None else k
    if not 1 <= length <= bundle.num_items:
        raise InputError(f"k={k}: must be from 1 to {bundle.num_items}, the size of the catalogue")
    IndexManifest.previous(Path(out))  # before the work
    evaluated = for_evaluation(bundle, dataset, part)
    config = bundle.experiment.evaluation
    histories = find_holdout(evaluated, part, config.request_time).histories
    rows = np.random.default_rng(0).permutation(np.flatnonzero(histories.lengths))
    rows = rows[:_MOST_HISTORIES]
    half = max(1, len(rows) // 2)
    first, second = histories.take(rows[:half]), histories.take(rows[half:])
    second = second if len(second) else first

    started, seen = time.perf_counter(), bundle.manifest.protocol.seen
    vectors = exact.vectors()
    items = ItemIndex.build(vectors.float().cpu().numpy())
    built = time.perf_counter() - started

    def scorer(searched: ItemIndex) -> IndexedScorer:
        """Return a scorer that knows no history yet."""
        encoder = query_encoder(replace(bundle, states=StateCache(_STATES)))
        return IndexedScorer(exact, encoder, encoder, searched)

    chosen = choose_probes(scorer(items), first, length, seen, wanted).index
    found = recall_of(scorer(chosen), second, length, seen)
    search = partial(search_times, partial(scorer, chosen), second, length, seen)
    times = [search(users) for users in _USERS_TOGETHER]
    index = BundleIndex.write(Path(out), bundle, chosen, length, found)
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
    return MadeIndex(index, facts, times)
