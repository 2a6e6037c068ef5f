"""What makes a bundle an MLflow model: a few small files beside the bundle's own.

The bundle is the data and `recsys.serving.pyfunc` reads it, by name: nothing is pickled, and the
weights are not copied.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
from mlflow.entities import LoggedModel
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array

from recsys.tracking.wheel import library_wheel

LOADER = "recsys.serving.pyfunc"
"""The module that MLflow calls to open a logged bundle."""
NEEDED = (
    *("mlflow", "narwhals", "numpy", "pandas", "polars", "pyarrow", "pydantic", "pyyaml", "rich"),
    *("safetensors", "scikit-learn", "scipy", "torch", "typer"),
)
"""The distributions that a served model needs."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the callers of a model must know of it."""

    items: list[Any]
    """The ids of some items, at least one, for the example."""
    num_items: int
    reads_times: bool
    needs_request_time: bool


def signature_of(facts: ModelFacts) -> ModelSignature:
    """Return the columns and parameters of `recsys.serving.pyfunc.HistoryModel.predict`."""
    item = DataType.string if isinstance(facts.items[0], str) else DataType.long
    long = Array(DataType.long)
    times = [ColSpec(long, "times", required=facts.needs_request_time)] if facts.reads_times else []
    return ModelSignature(
        inputs=Schema(
            [
                ColSpec(AnyType(), "user_id", required=False),
                ColSpec(Array(item), "items"),
                *times,
                ColSpec(Array(item), "candidates", required=False),
            ]
        ),
        outputs=Schema(
            [
                ColSpec(AnyType(), "user_id", required=False),
                ColSpec(Array(item), "item_id"),
                ColSpec(Array(DataType.double), "score"),
                ColSpec(DataType.string, "source"),
            ]
        ),
        params=ParamSchema(
            [
                ParamSpec("k", DataType.long, min(10, facts.num_items)),
                ParamSpec("seen", DataType.string, None),
                ParamSpec("at", DataType.string, None),
            ]
        ),
    )


def write_model_files(folder: Path, facts: ModelFacts, logged: LoggedModel) -> None:
    """Write MLmodel, requirements, the input example and the wheel into an empty folder.

    Args:
        folder: the folder.
        facts: what callers must know of the model.
        logged: the entry in the store that the files belong to.
    """
    example = pd.DataFrame({"items": [facts.items, facts.items[:1]]})
    params: dict[str, Any] = {"k": min(5, facts.num_items)}
    if facts.reads_times:
        example["times"] = [list(range(len(items))) for items in example["items"]]
    if facts.needs_request_time:
        params["at"] = str(len(facts.items))
    wheel = library_wheel()
    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)  # it reports each of its steps
    with warnings.catch_warnings():  # MLflow 3.17 compares column names in a way that pandas 3.1
        warnings.filterwarnings("ignore", "Operation with range", DeprecationWarning)  # calls old
        mlflow.pyfunc.save_model(
            str(folder),
            loader_module=LOADER,  # without a data_path, it is handed the folder itself
            mlflow_model=Model(
                artifact_path=logged.artifact_location,
                run_id=logged.source_run_id,
                model_id=logged.model_id,
            ),
            signature=signature_of(facts),
            input_example=(example, params),
            pip_requirements=[*_pinned(), f"wheels/{wheel.name}"],
        )
    (folder / "wheels").mkdir()
    (folder / "wheels" / wheel.name).write_bytes(wheel.content)


def _pinned() -> list[str]:
    """Return the needed distributions with their versions here, without builds such as +cpu."""
    versions = {name: metadata.version(name).partition("+")[0] for name in NEEDED}
    return [f"{name}=={version}" for name, version in versions.items()]
