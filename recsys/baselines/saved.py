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
_HEADER = "recsys.baseline"
_LARGEST_SETTING = 1e6
LARGEST_VALUE = 1e15
"""Sums and products of such values are finite as float32, which scores are."""
_TYPES = {"offsets": np.int64, "columns": np.int32, "values": np.float64}


class FittedBaseline(NamedTuple):
    """A baseline after its fit."""

    name: str
    """A key of `BASELINES`."""
    scorer: Scorer


def save_baseline(baseline: FittedBaseline, path: Path) -> None:
    """Write one safetensors file: the arrays of the scorer, and its settings in the header."""
    scorer: Any = baseline.scorer
    if not is_dataclass(scorer):
        raise TypeError(f"{type(scorer).__name__} cannot be saved")
    tensors: dict[str, NDArray[Any]] = {}
    settings: dict[str, Any] = {}
    for field in fields(scorer):
        name, value = field.name, getattr(scorer, field.name)
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
    with opened(path, _HEADER, "a baseline") as (tensors, facts):
        if facts["name"] != name:
            raise ValueError(f"it holds {facts['name']}, not {name}")
        hints = get_type_hints(kind)
        values: dict[str, Any] = {}
        for field in fields(kind):
            value: Any = tensors.get(field.name)
            if hints[field.name] is csr_array:
                value = read_matrix(tensors, num_items + 1, f"{field.name}.")
            elif is_dataclass(hints[field.name]):
                value = read_settings(hints[field.name], facts["settings"][field.name])
            elif len(tensors[field.name]) != num_items + 1:
                raise ValueError(
                    f"{field.name} must have a row for each of {num_items} items and PAD"
                )
            else:
                check_finite(field.name, tensors[field.name])
            values[field.name] = value
    return kind(**values)  # type: ignore[no-any-return]


@contextmanager
def opened(
    path: str | os.PathLike[str], header: str, noun: str
) -> Iterator[tuple[dict[str, NDArray[Any]], Any]]:
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


def matrix_tensors(matrix: csr_array, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Return the parts of a matrix [I + 1, I + 1] by name."""
    return {
        f"{prefix}offsets": matrix.indptr.astype(np.int64),
        f"{prefix}columns": matrix.indices.astype(np.int32),
        f"{prefix}values": matrix.data,
    }


def read_matrix(tensors: Mapping[str, NDArray[Any]], size: int, prefix: str = "") -> csr_array:
    """Build a matrix from `matrix_tensors`.

    All of it is checked: scipy does not check indices, and one outside the matrix would end the
    process.

    Args:
        tensors: the tensors of a file.
        size: I + 1, the rows and columns.
        prefix: of the names of the parts.

    Raises:
        KeyError: a part is missing.
        ValueError: the first part that is not as `matrix_tensors` wrote it.
    """
    for name, dtype in _TYPES.items():
        check_row(tensors, f"{prefix}{name}", dtype)
    offsets, columns, values = (tensors[f"{prefix}{name}"] for name in _TYPES)
    if size < 2 or len(offsets) != size + 1:
        raise ValueError(
            f"{prefix}offsets must be {size + 1} for {size - 1} items, not {len(offsets)}"
        )
    if len(columns) != len(values):
        raise ValueError(f"{len(columns)} {prefix}columns need as many values")
    if offsets[0] != 0 or offsets[-1] != len(columns) or (np.diff(offsets) < 0).any():
        raise ValueError(f"{prefix}offsets must ascend from 0 to {len(columns)}")
    if len(columns) and not (columns.min() >= 0 and columns.max() < size):
        raise ValueError(f"{prefix}columns must be item tokens from 0 to {size - 1}")
    return csr_array((values, columns, offsets), shape=(size, size))


def check_row(tensors: Mapping[str, NDArray[Any]], name: str, dtype: type[Any]) -> None:
    """Check that a tensor is one finite row of a type.

    Raises:
        KeyError: it is missing.
        ValueError: it is not.
    """
    array = tensors[name]
    if array.dtype != dtype or array.ndim != 1:
        raise ValueError(f"{name} must be one row of {np.dtype(dtype)}, not {array.dtype}")
    check_finite(name, array)


def check_finite(name: str, array: NDArray[Any]) -> None:
    """Check that the scores which are computed from an array will be finite.

    Raises:
        ValueError: they may not be.
    """
    if not (np.abs(array) <= LARGEST_VALUE).all():
        raise ValueError(f"{name} must be finite, and at most {LARGEST_VALUE:g}")


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
