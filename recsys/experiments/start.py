"""What a training starts from: random weights, or those of a trained model."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recsys.config import (
    Experiment,
    LeaveLastBasketOut,
    LeaveLastOut,
    StartConfig,
    continued,
    flatten,
)
from recsys.data.histories import PAD
from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError
from recsys.inference.catalogue import Catalogue
from recsys.serving.bundle import ModelBundle
from recsys.tracking import artifacts
from recsys.training.warm_start import WarmStart

logger = logging.getLogger(__name__)

_MAY_CHANGE = {"model.dropout", "model.mask_probability"}
"""Settings of a model that its weights do not depend on."""


class Start(NamedTuple):
    """The beginning of a training."""

    experiment: Experiment
    """The settings, with the digest of the model to start from."""
    catalogue: Catalogue
    warm: WarmStart | None = None
    """None if the weights are random."""


def continue_bundle(
    folder: str | os.PathLike[str], changes: Experiment | None, overrides: Sequence[str] = ()
) -> Experiment:
    """Return the experiment of a training that starts from the bundle in a folder.

    Args:
        folder: the bundle, or the run that has it.
        changes: an experiment whose fields win over those of the bundle; none if None.
        overrides: fields to change, as key=value.

    Raises:
        InputError: the folder is no bundle, holds a baseline, or a field is unknown or wrong.
    """
    bundle = ModelBundle.open(folder)
    _check_weights(bundle)
    return continued(bundle.experiment, os.fspath(folder), changes, overrides)


def plan_start(experiment: Experiment, dataset: PreparedDataset, out: Path) -> Start:
    """Read the model that an experiment starts from, if any, and match its items by their ids.

    Args:
        experiment: all settings, with those of the data.
        dataset: the dataset to train on, which may have other items than the model.
        out: the folder of the run.

    Raises:
        InputError: the model cannot be opened, is another one than the experiment names, has other
            settings, no item of the dataset, or is that of the folder of the run; it was trained on
            the validation targets; or the dataset lacks a feature that it reads.
    """
    start = experiment.start
    if start is None:
        return Start(experiment, Catalogue.of(experiment.model, dataset))
    bundle = ModelBundle.open(start.bundle)
    _check(experiment, start, bundle, dataset)
    if bundle.path.resolve() in ((out / artifacts.BUNDLE).resolve(), out.resolve()):
        raise InputError(
            f"{out}: the training would replace the model that it starts from: choose another "
            "--set name=NAME"
        )
    manifest = bundle.manifest
    experiment = experiment.model_copy(
        update={"start": start.model_copy(update={"digest": manifest.digest})}
    )
    tokens = np.concatenate([[PAD], bundle.vocabulary.encode(dataset.vocabulary.ids)])
    counts = np.concatenate([[0], bundle.item_table["count"].to_numpy()])
    known = int((tokens != PAD).sum())
    if not known:
        raise InputError(
            f"{start.bundle}: has no item in common with {dataset.path}: check that both "
            "come from the same log, with ids of the same type"
        )
    flattered = _knows_targets(bundle, dataset, "valid")
    _knows_targets(bundle, dataset, "test")
    warm = WarmStart(
        weights=bundle.model.state_dict(),
        tokens=tokens.astype(np.int32),
        untrained=(tokens != PAD) & (counts[tokens] == 0),
        until=manifest.trained_until,
        replay=start.replay,
        may_win=not flattered,
    )
    planned = experiment.planned.training
    logger.info(
        "starting from %s: %d of its %d items and %d new ones, %d epochs at a learning rate of %g",
        *(start.bundle, known, bundle.num_items, dataset.num_items - known),
        *(planned.max_epochs, planned.learning_rate),
    )
    catalogue = Catalogue.read(dataset.num_items, bundle.encoders, dataset.item_table)
    return Start(experiment, catalogue, warm)


def _check(
    experiment: Experiment, start: StartConfig, bundle: ModelBundle, dataset: PreparedDataset
) -> None:
    """Refuse a model that the training cannot start from."""
    manifest = bundle.manifest
    _check_weights(bundle)
    if start.digest not in (None, manifest.digest):
        raise InputError(
            f"start.digest={start.digest}: {start.bundle} holds another model, {manifest.digest}"
        )
    wanted, given = _model_settings(experiment), _model_settings(bundle.experiment)
    for name in sorted(wanted.keys() | given.keys(), key=lambda name: (name != "model.kind", name)):
        if wanted.get(name) != given.get(name):
            raise InputError(
                f"{name}={wanted.get(name)}: {start.bundle} was trained with {given.get(name)}, "
                "and a training that starts from it keeps the settings of its model"
            )
    same = dataset.fingerprint == manifest.dataset_fingerprint
    if same and "valid" in manifest.protocol.trained_on:
        raise InputError(
            f"{start.bundle}: was trained on the validation targets of {dataset.path} too (a "
            "refit), which then cannot choose an epoch: start from it on a later log"
        )


def _check_weights(bundle: ModelBundle) -> None:
    if bundle.trained is None:
        raise InputError(
            f"{bundle.path}: holds the baseline {bundle.experiment.baseline}, which has no weights "
            "to start from"
        )


def _model_settings(experiment: Experiment) -> Mapping[str, Any]:
    """Return the settings that decide the weights of a model and what they mean."""
    return {
        name: value
        for name, value in flatten(experiment).items()
        if name.startswith("model.") and name not in _MAY_CHANGE
    }


def _knows_targets(bundle: ModelBundle, dataset: PreparedDataset, part: Part) -> bool:
    """Warn if the model may have been trained on targets of the dataset, and return whether.

    It was not if all targets are later; nor if the same number of last interactions of each user
    was left out of its training, because that number moves with the log.
    """
    manifest, split = bundle.manifest, dataset.config.split
    left_out = isinstance(split, LeaveLastOut | LeaveLastBasketOut)
    trained_on: tuple[str, ...] = manifest.protocol.trained_on
    if left_out and manifest.protocol.split == str(split) and part not in trained_on:
        return False
    times = dataset.timestamps[dataset.target_positions(part).targets]
    until = manifest.trained_until
    early = len(times) if until is None else int((times <= until).sum())
    if early:
        effect = "the start is no candidate for the best epoch" if part == "valid" else ""
        logger.warning(
            "%s may have been trained on %d of the %d %s targets, which flatters it%s",
            *(bundle.path, early, len(times), part, f": {effect}" if effect else ""),
        )
    return bool(early)
