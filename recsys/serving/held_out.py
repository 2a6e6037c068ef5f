"""The dataset that a trained model is evaluated on: its own, or that of a later log."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from recsys.data.histories import PAD
from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle

logger = logging.getLogger(__name__)


def for_evaluation(bundle: ModelBundle, dataset: PreparedDataset, part: Part) -> PreparedDataset:
    """Return a dataset with the item tokens and the features of a model.

    The dataset may be of another log than the model was trained on, such as a later one: items are
    matched by their ids. Those outside the model's catalogue cannot be targets and are skipped in
    histories; a warning counts such targets. Another warning says if targets may have been seen in
    training.

    Args:
        bundle: the model.
        dataset: where the targets are.
        part: which of them are ranked.

    Raises:
        InputError: the model was trained on the targets; or the dataset lacks a feature that the
            model reads.
    """
    if dataset.fingerprint == bundle.manifest.dataset_fingerprint:
        if part == "valid" and "valid" in bundle.manifest.protocol.trained_on:
            raise InputError(
                f"{bundle.path}: the model was trained on the validation targets too (a refit)"
            )
        return bundle.encoders.read(dataset)
    ours = np.concatenate([[PAD], bundle.vocabulary.encode(dataset.vocabulary.ids)])
    items = ours.astype(np.int32)[dataset.items]
    targets = dataset.target_positions(part).targets
    outside = int((items[targets] == PAD).sum())
    if outside:
        logger.warning(
            "%s: %d of %d %s targets are not in the model's catalogue and are left out",
            *(dataset.path, outside, len(targets), part),
        )
    until = bundle.manifest.trained_until
    times = bundle.time_scale.of_dataset(dataset.timestamps, dataset.path)
    if until is None or (len(targets) and times[targets].min() <= until):
        logger.warning(
            "%s: not the dataset that the model was trained on, and not all of its targets are "
            "later than what it was trained on: it may have seen some of them",
            dataset.path,
        )
    mapped = replace(dataset, items=items, timestamps=times, item_table=bundle.item_table)
    return bundle.encoders.read(mapped)
