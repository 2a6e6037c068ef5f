"""Fitted baselines as files: the arrays of a count model, and no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_array

from recsys.baselines.sparse import check_finite, matrix_tensors, read_matrix, read_settings
from recsys.baselines.tuned import BASELINES
from recsys.errors import InputError
from recsys.inference.scorer import Scorer

_HEADER = "recsys.baseline"


@dataclass(frozen=True, slots=True, eq=False)
class FittedBaseline:
    """A baseline after its fit."""

    name: str
    """A key of `BASELINES`."""
    scorer: Scorer


def save_baseline(baseline: FittedBaseline, path: Path) -> None:
    """Write one safetensors file: the arrays of the scorer, and its settings in the header."""
    tensors: dict[str, NDArray[Any]] = {}
    settings: dict[str, Any] = {}
    for name, value in _fields_of(baseline.scorer).items():
        if isinstance(value, csr_array):
            tensors |= matrix_tensors(value, f"{name}.")
        elif isinstance(value, np.ndarray):
            tensors[name] = np.ascontiguousarray(value)
        else:
            settings[name] = asdict(value)
    facts = {"name": baseline.name, "settings": settings}
    save_file(tensors, path, {_HEADER: json.dumps(facts, sort_keys=True)})


def load_baseline(path: str | os.PathLike[str], name: str, num_items: int) -> Scorer:
    """Read what `save_baseline` wrote.

    Args:
        path: the file.
        name: the baseline that it must hold.
        num_items: the size of the catalogue, I.

    Raises:
        InputError: the file cannot be read, or does not hold this baseline of such a catalogue.
    """
    kind = BASELINES[name].kind
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads(file.metadata()[_HEADER])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if facts["name"] != name:
            raise ValueError(f"it holds {facts['name']}, not {name}")
        hints = get_type_hints(kind)
        values = {
            field.name: _value(field.name, hints[field.name], tensors, facts, num_items)
            for field in fields(kind)
        }
        return kind(**values)  # type: ignore[no-any-return]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a baseline: {error}") from error


def _fields_of(scorer: Any) -> dict[str, Any]:
    if not is_dataclass(scorer):
        raise TypeError(f"{type(scorer).__name__} cannot be saved")
    return {field.name: getattr(scorer, field.name) for field in fields(scorer)}


def _value(
    name: str, hint: Any, tensors: Mapping[str, NDArray[Any]], facts: Any, num_items: int
) -> Any:
    """Return the value of a field.

    Raises:
        ValueError: an array does not fit the catalogue, or is not finite.
    """
    if hint is csr_array:
        return read_matrix(tensors, num_items + 1, f"{name}.")
    if is_dataclass(hint):
        return read_settings(hint, facts["settings"][name])  # type: ignore[arg-type]
    array = tensors[name]
    if len(array) != num_items + 1:
        raise ValueError(f"{name} must have a row for each of {num_items} items and PAD")
    check_finite(name, array)
    return array
