"""Register a trained model by name: the one that a run logged, or a bundle."""

from __future__ import annotations

import os
from pathlib import Path

from recsys.config import TrackingConfig
from recsys.folders.manifest import MANIFEST
from recsys.serving.bundle import ModelBundle
from recsys.tracking.mlflow_model import ModelFacts
from recsys.tracking.registry import Registered, register_bundle, register_run


def model_facts(bundle: ModelBundle) -> ModelFacts:
    """Return what the callers of a bundle must know of it."""
    return ModelFacts(
        items=bundle.item_table["item_id"].head(2).to_list(),
        num_items=bundle.num_items,
        reads_times=bundle.times != "none",
        needs_request_time=bundle.times == "request",
    )


def register(
    model: str | os.PathLike[str],
    name: str,
    *,
    alias: str | None = None,
    tracking: TrackingConfig | None = None,
) -> Registered:
    """Register a model under a name in the MLflow store, as its next version.

    Args:
        model: a run, by id, beginning of its id or name; or the folder of a bundle, or of a run,
            whose files are logged first.
        name: the name, such as shop.
        alias: an alias that then names this version, such as champion.
        tracking: the store; the default one if None.

    Raises:
        InputError: the store cannot be used; or there is no such run or bundle.
    """
    tracking = tracking or TrackingConfig()
    path = Path(model)
    if not (path / MANIFEST).is_file() and not (path / "bundle" / MANIFEST).is_file():
        return register_run(str(model), name, tracking, alias)
    bundle = ModelBundle.open(path)
    return register_bundle(bundle.path, model_facts(bundle), name, tracking, alias)
