"""Open a trained model, a bundle or one of an MLflow store, to use it or to train on from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.files import continued, load_experiment
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError

if TYPE_CHECKING:
    from recsys.serving.bundle import ModelBundle
    from recsys.serving.recommender import Recommender


def load(
    path: str | os.PathLike[str],
    dataset: PreparedDataset | str | os.PathLike[str] | None = None,
    *,
    tracking: TrackingConfig | None = None,
) -> Recommender:
    """Open a trained model, and a prepared dataset, or its folder, to look users up in.

    Args:
        path: the folder of a bundle or of a run; or a model of an MLflow store:
            ``models:/NAME@ALIAS``, ``models:/NAME/VERSION`` or ``runs:/RUN_ID/bundle``.
        dataset: of the users; none can be named if None.
        tracking: the store; the default one if None.

    Raises:
        InputError: there is no such model, or one of the folders cannot be opened.
    """
    from recsys.serving.recommender import Recommender  # noqa: PLC0415 - torch takes seconds

    return Recommender.load(bundle_folder(path, tracking), dataset)


def extend(
    path: str | os.PathLike[str],
    dataset: PreparedDataset | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    tracking: TrackingConfig | None = None,
) -> Recommender:
    """Add the new items of a dataset to a trained model, without training, and write the result.

    See `recsys.serving.new_items.extend`; ``path`` is that of `load`.
    """
    from recsys.serving.new_items import extend as extend_bundle  # noqa: PLC0415 - as above
    from recsys.serving.recommender import Recommender  # noqa: PLC0415

    dataset = PreparedDataset.open(dataset)
    return Recommender(extend_bundle(open_bundle(path, tracking), dataset, out), dataset)


def open_bundle(
    path: str | os.PathLike[str], tracking: TrackingConfig | None = None
) -> ModelBundle:
    """Open the bundle of a trained model; ``path`` is that of `load`."""
    from recsys.serving.bundle import ModelBundle  # noqa: PLC0415 - torch takes seconds

    return ModelBundle.open(bundle_folder(path, tracking))


def experiment_to_train(
    experiment: Experiment | str | os.PathLike[str] | None,
    start: str | os.PathLike[str] | None,
    overrides: Sequence[str],
) -> Experiment:
    """Return an experiment, read from its YAML, or that which continues a trained model.

    See `recsys.train` and, for the settings of a model that is continued, `continued`.
    """
    if isinstance(experiment, str | os.PathLike):
        experiment = load_experiment(experiment, () if start else overrides)
    if start is not None:
        folder = bundle_folder(start)
        return continued(open_bundle(folder).experiment, os.fspath(folder), experiment, overrides)
    if experiment is None:
        raise InputError("train: needs an experiment, or the model to start from")
    return experiment


def bundle_folder(path: str | os.PathLike[str], tracking: TrackingConfig | None = None) -> Path:
    """Return the folder of a model, downloaded if a store elsewhere holds it; see `load`."""
    if not is_model_name(path):
        return Path(path)
    from recsys.tracking.registry import local_bundle  # noqa: PLC0415 - the base install has none

    return local_bundle(os.fspath(path), tracking or TrackingConfig())


def stored_at(path: str | os.PathLike[str]) -> str:
    """Return where the model of a path or a name is at the moment: a name may move on."""
    if not is_model_name(path):
        return os.fspath(path)
    from recsys.tracking.registry import bundle_place  # noqa: PLC0415 - the base install has none

    return bundle_place(os.fspath(path), TrackingConfig())


def is_model_name(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the name of a model of an MLflow store."""
    return os.fspath(path).startswith(("models:", "runs:"))
