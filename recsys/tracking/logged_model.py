"""Bundles as logged models of MLflow: an entry in the store, and the files of the bundle in it."""

from __future__ import annotations

import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput

from recsys.tracking.artifacts import BUNDLE
from recsys.tracking.mlflow_model import ModelFacts, write_model_files


def log_bundle(
    client: MlflowClient,
    experiment_id: str,
    bundle: Path,
    facts: ModelFacts,
    run_id: str | None = None,
) -> LoggedModel:
    """Log a bundle as an MLflow model, named `BUNDLE`; its files are uploaded once, as they are.

    Args:
        client: the store.
        experiment_id: the MLflow experiment.
        bundle: the folder.
        facts: what callers must know of the model.
        run_id: the run that trained it; None if unknown.

    Raises:
        MlflowException: the store cannot be written.
    """
    logged = client.create_logged_model(
        experiment_id, name=BUNDLE, source_run_id=run_id, model_type="recsys"
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / BUNDLE
        write_model_files(folder, facts, logged)
        client.log_model_artifacts(logged.model_id, str(bundle))
        client.log_model_artifacts(logged.model_id, str(folder))
    if run_id is not None:  # now that it is whole: the record of a store that fails is tried again
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    return client.finalize_logged_model(logged.model_id, "READY")


def local_folder(place: str) -> Path | None:
    """Return the folder of an artifact location; None if it is not on this machine.

    >>> local_folder("file:///data/my%20runs").as_posix()
    '/data/my runs'
    """
    parts = urllib.parse.urlparse(place)
    if parts.scheme not in ("", "file"):
        return None
    return Path(urllib.request.url2pathname(parts.path))
