"""What makes a bundle an MLflow model: a few small files beside the bundle's own.

The bundle is the data and `recsys.serving.pyfunc` reads it, by name: nothing is pickled, and the
weights are not copied.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import yaml
from mlflow.entities import LoggedModel
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array

from recsys.tracking.wheel import library_wheel

LOADER = "recsys.serving.pyfunc"
"""The module that MLflow calls to open a logged bundle."""
NEEDED = (
    *("filelock", "mlflow", "narwhals", "numpy", "pandas", "polars", "pyarrow", "pydantic"),
    *("pyyaml", "rich", "safetensors", "scikit-learn", "scipy", "torch", "typer"),
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
    user = ColSpec(AnyType(), "user_id", required=False)
    # Lists: a type of their own would refuse what a left join leaves of a missing one, None or NaN.
    times = (
        [ColSpec(AnyType(), "times", required=facts.needs_request_time)]
        if facts.reads_times
        else []
    )
    return ModelSignature(
        inputs=Schema(
            [
                user,
                ColSpec(AnyType(), "items"),
                *times,
                ColSpec(AnyType(), "candidates", required=False),
            ]
        ),
        outputs=Schema(
            [
                user,
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
    """Write MLmodel, requirements, the input example and the wheel into a new folder.

    MLflow's own `save_model` would look every requirement up among all installed packages: 3 s.

    Args:
        folder: the folder.
        facts: what callers must know of the model.
        logged: the entry in the store that the files belong to.
    """
    wheel = library_wheel()
    (folder / "wheels").mkdir(parents=True)
    (folder / "wheels" / wheel.name).write_bytes(wheel.content)
    requirements = [*_pinned(), f"wheels/{wheel.name}"]
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
    python = platform.python_version()
    environment = {
        "python": python,
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": ["-r requirements.txt"],
    }
    (folder / "python_env.yaml").write_text(yaml.safe_dump(environment), encoding="utf-8")
    conda = {
        "name": "recsys",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": requirements}],
    }
    (folder / "conda.yaml").write_text(yaml.safe_dump(conda), encoding="utf-8")
    model = Model(
        artifact_path=logged.artifact_location,
        run_id=logged.source_run_id,
        model_id=logged.model_id,
        signature=signature_of(facts),
        saved_input_example_info=_write_example(folder, facts),
    )
    mlflow.pyfunc.add_to_model(
        model,
        loader_module=LOADER,  # without data, it is handed the folder itself
        conda_env="conda.yaml",
        python_env="python_env.yaml",
    )
    model.save(str(folder / "MLmodel"))


def _write_example(folder: Path, facts: ModelFacts) -> dict[str, str]:
    """Write the input example, for Python and for HTTP; return what MLmodel says of it."""
    histories = [facts.items, facts.items[:1]]
    columns, data = ["items"], [[items] for items in histories]
    if facts.reads_times:
        columns = ["items", "times"]
        data = [[items, list(range(len(items)))] for items in histories]
    params: dict[str, Any] = {"k": min(5, facts.num_items)}
    if facts.needs_request_time:
        params["at"] = str(len(facts.items))
    frame = {"columns": columns, "data": data}
    own, served = "input_example.json", "serving_input_example.json"
    for name, key in ((own, "inputs"), (served, "dataframe_split")):
        text = json.dumps({key: frame, "params": params}, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")
    return {
        "artifact_path": own,
        "serving_input_path": served,
        "type": "dataframe",
        "pandas_orient": "split",
        "params": "true",
    }


@cache
def _pinned() -> tuple[str, ...]:
    """Return the needed distributions with their versions here, without builds such as +cpu."""
    versions = {name: metadata.version(name).partition("+")[0] for name in NEEDED}
    return tuple(f"{name}=={version}" for name, version in versions.items())
