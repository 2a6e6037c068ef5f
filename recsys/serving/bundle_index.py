"""An index of the items of a bundle, in a folder of its own: finds them without scoring all."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from recsys.errors import InputError, checked_path
from recsys.folders.atomic import new_folder
from recsys.folders.digests import file_sha256, tree_sha256
from recsys.folders.manifest import FolderManifest
from recsys.inference.item_index import ItemIndex
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.model.heads import DotProductHead
from recsys.serving.bundle import ModelBundle

_LISTS = "lists.safetensors"
STATES = 64 << 20
"""Bytes of encoded histories that are kept from a search to the scoring of what it found."""


class IndexManifest(FolderManifest):
    """The manifest of an index."""

    noun: ClassVar[str] = "an index of items"
    remedy: ClassVar[str] = "make it again with recsys index"
    current_version: ClassVar[int] = 1
    own_names: ClassVar[re.Pattern[str]] = re.compile(r"lists\.safetensors")

    format: Literal["recsys.index"] = "recsys.index"
    format_version: int = current_version
    bundle: str
    """What the files of the bundle are: see `_fingerprint`."""
    num_items: int
    """Size of the catalogue, I."""
    probes: int
    """The number of lists that a search reads."""
    k: int
    """The length of the lists whose recall was measured."""
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
        cls,
        path: str | os.PathLike[str],
        bundle: ModelBundle,
        items: ItemIndex,
        k: int,
        found: float,
    ) -> BundleIndex:
        """Write the folder of an index atomically; an earlier one there is replaced.

        Args:
            path: the folder.
            bundle: the model whose items are indexed.
            items: the index.
            k: see `IndexManifest`.
            found: the recall; see `IndexManifest`.

        Raises:
            InputError: the path holds something else, or cannot be written.
        """
        path = Path(path)
        IndexManifest.previous(path)
        with new_folder(path) as folder:
            save_file({"directions": items.directions, "lists": items.lists}, folder / _LISTS)
            manifest = IndexManifest(
                bundle=_fingerprint(bundle),
                num_items=items.num_items,
                probes=items.probes,
                k=k,
                recall=found,
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

        def load(manifest: IndexManifest) -> BundleIndex:
            _check(folder, manifest, bundle)
            return cls(folder, manifest, _read(folder, manifest, bundle))

        return IndexManifest.load(folder, load)

    def check(self, bundle: ModelBundle) -> None:
        """Return if the index is of this bundle.

        Raises:
            InputError: it is not, or items were added to the bundle after training.
        """
        _check(self.path, self.manifest, bundle)


def query_encoder(bundle: ModelBundle, states: StateCache | None = None) -> ModelScorer:
    """Return what turns histories into queries, and items into vectors, for an index.

    With target attention that is the dot product, its first part.

    Args:
        bundle: the model.
        states: keeps encoded histories; none are kept if None.

    Raises:
        InputError: the model is a baseline, or has a count ensemble.
    """
    reason = None
    if bundle.trained is None:
        reason = f"the baseline {bundle.experiment.baseline} counts, and has no vectors of items"
    elif bundle.count_ensemble is not None:
        reason = "its count ensemble adds scores that are no dot products"
    else:
        longest = bundle.experiment.model.max_sequence_length
        return ModelScorer(bundle.trained, longest, DotProductHead(), trained=True, states=states)
    raise InputError(f"{bundle.path}: cannot be searched by an index: {reason}")


def _check(path: Path, manifest: IndexManifest, bundle: ModelBundle) -> None:
    if bundle.num_items != bundle.manifest.num_items:
        raise InputError(
            f"{path}: has the {manifest.num_items} items of the training, not those that were "
            "added: leave out the index, or the new items"
        )
    if manifest.bundle != _fingerprint(bundle):
        raise InputError(
            f"{path}: an index of another model than {bundle.path}; {IndexManifest.remedy}"
        )


def _read(path: Path, manifest: IndexManifest, bundle: ModelBundle) -> ItemIndex:
    """Read the lists, and fill them with the vectors of the bundle."""
    vectors = query_encoder(bundle).vectors().float().cpu().numpy()
    if _LISTS not in manifest.files:
        raise InputError(f"{path}: the manifest of the index does not list {_LISTS}")
    try:
        tensors = load_file(path / _LISTS)
        directions, lists = tensors["directions"], tensors["lists"]
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(f"{path / _LISTS}: cannot be read as an index: {error}") from error
    fits = (
        directions.ndim == 2
        and directions.shape[1] == vectors.shape[1]
        and lists.shape == (len(vectors),)
        and directions.dtype == np.float32
        and lists.dtype == np.int32
        and bool(np.isfinite(directions).all())
        and 0 <= lists.min() <= lists.max() < len(directions)
        and 1 <= manifest.probes <= len(directions)
    )
    if not fits:
        raise InputError(f"{path / _LISTS}: does not fit the model; {IndexManifest.remedy}")
    return ItemIndex.of(vectors, directions, lists, manifest.probes)


def _fingerprint(bundle: ModelBundle) -> str:
    """The SHA-256 of the checksums of a bundle's files, which a calibration does not change."""
    return tree_sha256(bundle.manifest.files)
