"""The model registry of an MLflow store: names, versions and aliases of logged bundles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException

from recsys.config import TrackingConfig
from recsys.errors import InputError
from recsys.tracking.artifacts import BUNDLE
from recsys.tracking.logged_model import local_folder, log_bundle
from recsys.tracking.mlflow_model import ModelFacts
from recsys.tracking.runs import existing_store, find_run, no_progress_bar
from recsys.tracking.store import open_store, refuse_broken_store

_MODEL = re.compile(r"models:/(?P<name>[^/@]+)(@(?P<alias>[^/]+)|/(?P<version>\d+))")
_LOGGED = re.compile(r"models:/(?P<model>m-[^/@]+)")
_RUN = re.compile(rf"runs:/(?P<run>[^/]+)/{BUNDLE}")


class Registered(NamedTuple):
    """A version of a registered model."""

    name: str
    version: str
    alias: str | None

    @property
    def uri(self) -> str:
        """The URI by which MLflow and `local_bundle` know it."""
        place = f"/{self.version}" if self.alias is None else f"@{self.alias}"
        return f"models:/{self.name}{place}"


def register_run(
    run: str, name: str, tracking: TrackingConfig, alias: str | None = None
) -> Registered:
    """Register the bundle that a run has logged.

    Args:
        run: its id, the beginning of its id or its name.
        name: the registered model's name; a new version if there is one.
        tracking: the store.
        alias: an alias, such as champion, that then names this version and no other.

    Raises:
        InputError: the store cannot be used; there is no such run, or it logged no model.
    """
    found = find_run(run, tracking)
    with existing_store(tracking) as client:
        return _register(client, _model_of(client, found.info.run_id), name, alias)


def register_bundle(
    bundle: Path, facts: ModelFacts, name: str, tracking: TrackingConfig, alias: str | None = None
) -> Registered:
    """Log a bundle that no run of the store has logged, and register it: see `register_run`.

    Args:
        bundle: the folder.
        facts: what callers must know of the model.
        name: the registered model's name.
        tracking: the store.
        alias: an alias.

    Raises:
        InputError: the store cannot be used.
    """
    client, experiment_id = open_store(tracking)
    with refuse_broken_store(tracking.uri):
        logged = log_bundle(client, experiment_id, bundle, facts)
        return _register(client, logged, name, alias)


def local_bundle(uri: str, tracking: TrackingConfig) -> Path:
    """Return the folder of a logged bundle, downloaded unless the store is on this machine.

    For the arguments and errors see `bundle_place`.
    """
    place = bundle_place(uri, tracking)
    folder = local_folder(place)
    if folder is not None:
        return folder
    with existing_store(tracking), no_progress_bar():
        return Path(download_artifacts(place, tracking_uri=tracking.absolute_uri))


def bundle_place(uri: str, tracking: TrackingConfig) -> str:
    """Return where the store keeps a logged bundle; an alias may be moved on to another place.

    Args:
        uri: ``models:/NAME@ALIAS``, ``models:/NAME/VERSION``, ``models:/MODEL_ID`` or
            ``runs:/RUN_ID/bundle``.
        tracking: the store.

    Raises:
        InputError: the URI is none of these, nothing has that name, or the store cannot be used.
    """
    registered, logged, of_run = (form.fullmatch(uri) for form in (_MODEL, _LOGGED, _RUN))
    if not (registered or logged or of_run):
        raise InputError(
            f"{uri}: a model is models:/NAME@ALIAS, models:/NAME/VERSION or runs:/RUN_ID/{BUNDLE}"
        )
    with existing_store(tracking) as client:
        if registered:
            return _registered_place(client, uri, **registered.groupdict())
        if logged:
            return str(client.get_logged_model(logged["model"]).artifact_location)
        assert of_run is not None  # noqa: S101 - one of the three is there
        return str(_model_of(client, of_run["run"]).artifact_location)


def _registered_place(
    client: MlflowClient, uri: str, name: str, alias: str | None, version: str | None
) -> str:
    try:
        if alias is not None:
            found = client.get_model_version_by_alias(name, alias)
        else:
            found = client.get_model_version(name, version or "")
        return client.get_model_version_download_uri(name, found.version)
    except MlflowException as error:
        known = ", ".join(sorted(one.name for one in client.search_registered_models()))
        raise InputError(
            f"{uri}: no such model in the registry, which has {known or 'none'}"
        ) from error


def _model_of(client: MlflowClient, run_id: str) -> LoggedModel:
    """Return the model that a run has logged."""
    run = client.get_run(run_id)
    outputs = [] if run.outputs is None else run.outputs.model_outputs
    models = [client.get_logged_model(output.model_id) for output in outputs]
    model = next((one for one in models if one.name == BUNDLE), None)
    if model is None:
        raise InputError(f"run {run.info.run_name} ({run_id[:8]}): has logged no model")
    return model


def _register(client: MlflowClient, model: LoggedModel, name: str, alias: str | None) -> Registered:
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    run_id = model.source_run_id
    # For a model without a run, MLflow 3.17 looks its id up in its global store, not in ours.
    model_id = None if run_id is None else model.model_id
    place = model.artifact_location
    version = client.create_model_version(name, place, run_id, model_id=model_id).version
    if alias is not None:
        client.set_registered_model_alias(name, alias, version)
    return Registered(name, str(version), alias)
