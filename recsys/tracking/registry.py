"""The model registry of an MLflow store: a bundle becomes a version of a name, and is found by it.

A registered model is MLflow's pyfunc: the bundle is its data, `recsys.serving.pyfunc` reads it, the
library's code lies beside it.
"""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import mlflow.pyfunc
import pandas as pd
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.store.artifact.utils.models import get_model_name_and_version
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array

from recsys.config.experiment import TrackingConfig
from recsys.errors import InputError, one_line
from recsys.folders import MANIFEST
from recsys.tracking.artifacts import BUNDLE
from recsys.tracking.store import existing_store, open_store, refuse_broken_store

NEEDED = (
    *("duckdb", "filelock", "mlflow", "narwhals", "numpy", "pandas", "polars", "pyarrow"),
    *("pydantic", "pyyaml", "rich", "safetensors", "scikit-learn", "scipy", "torch", "typer"),
)


class Registered(NamedTuple):
    """A version of a registered model."""

    uri: str
    """By its alias if it has one: ``models:/NAME@ALIAS``, or else ``models:/NAME/VERSION``."""
    version: str


def register_bundle(
    bundle: Path,
    items: list[Any],
    num_items: int,
    times: str,
    name: str,
    tracking: TrackingConfig,
    alias: str | None = None,
    run_id: str | None = None,
) -> Registered:
    """Register a bundle as MLflow's pyfunc, as the next version of a name; an alias names it.

    The ids of some of its items are an example; ``times`` are those of `ModelBundle`.
    """
    client, experiment_id = open_store(tracking)
    versions = {name: metadata.version(name).partition("+")[0] for name in NEEDED}  # not +cpu
    with (
        refuse_broken_store(tracking.uri),
        tempfile.TemporaryDirectory() as scratch,
        warnings.catch_warnings(),
    ):
        # MLflow 3.17 compares columns with a range, which pandas 3 deprecates.
        warnings.filterwarnings("ignore", "Operation with range is deprecated")
        folder = f"{scratch}/model"
        mlflow.pyfunc.save_model(
            folder,
            loader_module="recsys.serving.pyfunc",
            data_path=str(bundle),
            code_paths=[str(Path(__file__).parents[1])],
            signature=_signature(items[0], num_items, times),
            input_example=_example(items, num_items, times),
            pip_requirements=[f"{name}=={version}" for name, version in versions.items()],
        )
        model = client.create_logged_model(experiment_id, name=BUNDLE, source_run_id=run_id)
        client.log_model_artifacts(model.model_id, folder)
        client.finalize_logged_model(model.model_id, "READY")
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        # For a model without a run, MLflow 3.17 looks its id up in its global store, not in ours.
        model_id = None if run_id is None else model.model_id
        created = client.create_model_version(
            name, model.artifact_location, run_id, model_id=model_id
        )
        if alias is not None:
            client.set_registered_model_alias(name, alias, created.version)
    version = str(created.version)
    return Registered(f"models:/{name}" + (f"@{alias}" if alias else f"/{version}"), version)


def local_bundle(uri: str, tracking: TrackingConfig) -> Path:
    """Return the folder of a bundle of a store, downloaded unless the store is on this machine."""
    place = bundle_place(uri, tracking)
    with _one_line(uri, tracking):
        folder = Path(download_artifacts(place, tracking_uri=tracking.absolute_uri))
    if uri.startswith("runs:"):
        return folder
    for manifest in (folder / "data").glob(f"*/{MANIFEST}"):
        return manifest.parent
    raise InputError(f"{uri}: is no model of recsys")


def bundle_place(uri: str, tracking: TrackingConfig) -> str:
    """Return where the store keeps a model; an alias may be moved on to another place.

    The URI is ``models:/NAME@ALIAS``, ``models:/NAME/VERSION`` or ``runs:/RUN_ID/bundle``.
    """
    with _one_line(uri, tracking) as client:
        if uri.startswith("runs:"):
            run_id, _, path = uri.removeprefix("runs:/").partition("/")
            return f"{client.get_run(run_id).info.artifact_uri}/{path or BUNDLE}"
        found = get_model_name_and_version(client, uri)
        if len(found) == 1:  # a model of no name, by its id
            return str(client.get_logged_model(*found).artifact_location)
        return client.get_model_version_download_uri(*found)


@contextmanager
def _one_line(uri: str, tracking: TrackingConfig) -> Iterator[MlflowClient]:
    """Open the store; what it does not know is named, with the models that it has."""
    with existing_store(tracking) as client:
        try:
            yield client
        except MlflowException as error:
            known = ", ".join(sorted(model.name for model in client.search_registered_models()))
            raise InputError(
                f"{uri}: no such model in the store: {one_line(error, 200)}; a model is "
                f"models:/NAME@ALIAS, models:/NAME/VERSION or runs:/RUN_ID/{BUNDLE}, and the "
                f"registry has {known or 'none'}"
            ) from error


def _signature(example: Any, num_items: int, times: str) -> ModelSignature:
    """Return the columns and parameters of `HistoryModel.predict`."""
    item = DataType.string if isinstance(example, str) else DataType.long
    # Lists: a type of their own would refuse what a left join leaves of a missing one, None or NaN.
    user, candidates = (ColSpec(AnyType(), name, False) for name in ("user_id", "candidates"))
    read = [ColSpec(AnyType(), "times", required=times == "request")] * (times != "none")
    columns = [user, ColSpec(AnyType(), "items"), *read, candidates]
    lists = ColSpec(Array(item), "item_id"), ColSpec(Array(DataType.double), "score")
    params = [
        ParamSpec("k", DataType.long, min(10, num_items)),
        ParamSpec("retrieve", DataType.long, None),
        ParamSpec("diversity", DataType.double, None),
        *(ParamSpec(name, DataType.string, None) for name in ("seen", "at", "where")),
        *(ParamSpec(name, item, [], (-1,)) for name in ("allow", "deny")),
    ]
    answer = Schema([user, *lists, ColSpec(DataType.string, "source")])
    return ModelSignature(Schema([*columns]), answer, ParamSchema(params))


def _example(items: list[Any], num_items: int, times: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    frame = pd.DataFrame({"items": [items, items[:1]]})
    if times != "none":
        frame["times"] = [list(range(len(history))) for history in frame["items"]]
    params: dict[str, Any] = {"k": min(5, num_items)}
    return frame, params | ({"at": str(len(items))} if times == "request" else {})
