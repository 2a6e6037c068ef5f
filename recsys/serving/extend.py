"""Add the new items of a dataset to a bundle, without training."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch

from recsys.data.features.encoders import VECTORS, save_vectors
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError
from recsys.folders.atomic import new_folder
from recsys.inference.catalogue import empty_model
from recsys.inference.grown_items import EarlierModel
from recsys.serving.bundle import ModelBundle
from recsys.serving.bundle_files import write_files
from recsys.serving.bundle_manifest import BundleManifest, EarlierBundle
from recsys.serving.new_items import appended, appended_vectors, new_rows

logger = logging.getLogger(__name__)


def extend(
    bundle: ModelBundle, dataset: PreparedDataset, out: str | os.PathLike[str]
) -> ModelBundle:
    """Write a bundle that also recommends the items of a dataset that the given one lacks.

    The known items keep their scores. A new item is represented by its features where the model
    reads item features, else by the mean of its first neighbours in the histories of the parts
    that the model was trained on, else by the mean of all items; see `EarlierModel.grown`. A count
    ensemble counts the pairs with a new item in the same histories.

    Args:
        bundle: the trained model.
        dataset: where the new items and their neighbours are; items are matched by their ids.
        out: the folder to write; a bundle there is replaced.

    Returns:
        The new bundle. Its known items come first, in their order.

    Raises:
        InputError: the bundle holds a baseline; the item table of the dataset lacks a feature that
            the model reads; ids are of another type; or the folder holds something else, cannot be
            written or is the bundle's own.
    """
    out = Path(out)
    if bundle.trained is None:
        raise InputError(
            f"{bundle.path}: holds the baseline {bundle.experiment.baseline}, which learns new "
            "items by being fitted again"
        )
    if out.resolve() == bundle.path.resolve():
        raise InputError(f"{out}: is the bundle that is extended: choose another folder")
    BundleManifest.previous(out)
    tokens = bundle.vocabulary.encode(dataset.vocabulary.ids)
    added = dataset.item_table.filter(pl.Series(tokens == PAD))
    items, vectors = bundle.item_table, bundle.vectors
    if len(added):
        origin = str(dataset.path)
        new = new_rows(items, added, bundle.encoders.items, origin)
        items, vectors = appended(items, new, origin), appended_vectors(bundle, new, origin)
    ours = np.concatenate([[PAD], Vocabulary(items["item_id"]).encode(dataset.vocabulary.ids)])
    mapped = replace(dataset, items=ours.astype(np.int32)[dataset.items])
    trained_on = bundle.manifest.protocol.trained_on
    histories = mapped.histories("test" if "valid" in trained_on else "valid")
    model = empty_model(bundle.experiment, items, len(items), bundle.encoders, vectors)
    known = np.arange(len(items) + 1, dtype=np.int32)
    known[bundle.num_items + 1 :] = PAD
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(bundle.experiment.seed)
        earlier = EarlierModel(bundle.model.state_dict(), known)
        model.load_state_dict(earlier.grown(model, histories))
    counts = bundle.count_ensemble
    if counts is not None:
        counts = counts.with_new_items(histories, len(items))
    seen = len(np.unique(histories.items[histories.items > bundle.num_items]))
    logger.info(
        "%d new items, %d of them in the histories of %s",
        *(len(added), seen, dataset.path),
    )
    with new_folder(out) as folder:
        if vectors:
            save_vectors(vectors, folder / VECTORS)
        files = write_files(folder, model, bundle.experiment, items, counts, bundle.encoders)
        facts = {
            "num_items": len(items),
            "files": files,
            "extended_from": EarlierBundle.of(bundle.path, bundle.manifest),
        }
        bundle.manifest.model_copy(update=facts).write(folder)
    return ModelBundle.open(out)
