"""Fitted counts as files: matrices over the items, rows of numbers, settings; and no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_array

from recsys.baselines.tuned import BASELINES
from recsys.errors import InputError
from recsys.inference.scorer import Scorer

S = TypeVar("S")
Arrays = Mapping[str, NDArray[Any]]
_HEADER = "recsys.baseline"
_LARGEST_SETTING = 1e6
LARGEST_VALUE = 1e15
"""Sums and products of such values are finite as float32, which scores are."""
_MATRIX = {"offsets": np.int64, "columns": np.int32, "values": np.float64}
"""The arrays of a saved matrix, with their types."""


class FittedBaseline(NamedTuple):
    """A baseline after its fit."""

    name: str
    """A key of `BASELINES`."""
    scorer: Scorer


def save_baseline(baseline: FittedBaseline, path: Path) -> None:
    """Write one safetensors file: the arrays of the scorer, and its settings in the header."""
    save_counts(baseline.scorer, path, _HEADER, {"name": baseline.name})


def load_baseline(path: str | os.PathLike[str], name: str, num_items: int) -> Scorer:
    """Read what `save_baseline` wrote.

    Args:
        path: the file.
        name: the baseline that it must hold.
        num_items: the size of the catalogue, I.

    Raises:
        InputError: the file cannot be read, or does not hold this baseline of such a catalogue.
    """
    with opened(path, _HEADER, "a baseline") as (tensors, facts):
        if facts["name"] != name:
            raise ValueError(f"it holds {facts['name']}, not {name}")
        scorer: Scorer = read_counts(BASELINES[name].kind, tensors, facts, num_items)
    return scorer


def save_counts(scorer: Any, path: str | os.PathLike[str], header: str, facts: Any) -> None:
    """Write a dataclass of matrices, arrays and settings; its settings and the facts as JSON."""
    tensors: dict[str, NDArray[Any]] = {}
    settings: dict[str, Any] = {}
    for field in fields(scorer):
        name, value = field.name, getattr(scorer, field.name)
        if isinstance(value, csr_array):
            arrays = (value.indptr, value.indices, value.data)
            for (part, dtype), array in zip(_MATRIX.items(), arrays, strict=True):
                tensors[f"{name}.{part}"] = array.astype(dtype, copy=False)
        elif isinstance(value, np.ndarray):
            tensors[name] = np.ascontiguousarray(value)
        else:
            settings[name] = asdict(value)
    save_file(tensors, path, {header: json.dumps(facts | {"settings": settings}, sort_keys=True)})


def read_counts(kind: type[S], tensors: Arrays, facts: Any, num_items: int) -> S:
    """Make a dataclass that `save_counts` wrote.

    Raises:
        KeyError: an array is missing.
        ValueError: the first array or setting that is not as it was written.
    """
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, hint in ((field.name, hints[field.name]) for field in fields(kind)):  # type: ignore[arg-type]
        if hint is csr_array:
            values[name] = _read_matrix(tensors, name, num_items + 1)
        elif is_dataclass(hint) and isinstance(hint, type):
            values[name] = read_settings(hint, facts["settings"][name])
        elif len(tensors[name]) != num_items + 1:
            raise ValueError(f"{name} must have a row for each of {num_items} items and PAD")
        else:
            values[name] = _finite(name, tensors[name])
    return kind(**values)


@contextmanager
def opened(path: str | os.PathLike[str], header: str, noun: str) -> Iterator[tuple[Arrays, Any]]:
    """Open a file for reading: its tensors by name, and the facts in its header.

    Raises:
        InputError: the file cannot be read, or the caller finds that it is not what it must be.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads(file.metadata()[header])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        yield tensors, facts
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as {noun}: {error}") from error


def _read_matrix(tensors: Arrays, name: str, size: int) -> csr_array:
    """Build a matrix [I + 1, I + 1]; an index outside it would end the process that uses it."""
    for part, dtype in _MATRIX.items():
        if (array := tensors[f"{name}.{part}"]).dtype != dtype or array.ndim != 1:
            raise ValueError(f"{name}.{part} must be one row of {np.dtype(dtype)}")
    offsets, columns, values = (tensors[f"{name}.{part}"] for part in _MATRIX)
    if offsets[-1:].tolist() != [len(columns)] or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name}.offsets must ascend to {len(columns)}")  # scipy may not look
    matrix = csr_array((_finite(f"{name}.values", values), columns, offsets), shape=(size, size))
    matrix.check_format(full_check=True)
    return matrix


def _finite(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array if the scores that are computed from it will be finite."""
    if not (np.abs(array) <= LARGEST_VALUE).all():
        raise ValueError(f"{name} must be finite, and at most {LARGEST_VALUE:g}")
    return array


def read_settings(kind: type[S], values: Mapping[str, Any]) -> S:
    """Make settings of values that JSON held.

    Raises:
        ValueError: the first that is not of its type, or so large that nobody would wait.
    """
    for name, value in values.items():
        if isinstance(value, int | float) and not abs(value) <= _LARGEST_SETTING:
            rule = f"must be finite, and at most {_LARGEST_SETTING:g} in size"
            raise ValueError(f"{name}={value!r}: {rule}")
    try:
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        wrong = error.errors()[0]
        setting = ".".join(map(str, wrong["loc"]))
        raise ValueError(f"{setting}={wrong['input']!r}: {wrong['msg']}") from error
