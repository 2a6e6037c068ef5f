"""Fitted counts as files: matrices over the items, rows of numbers, settings; and no pickle."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy.sparse import csr_array

from recsys.baselines.tuned import BASELINES
from recsys.errors import InputError, first_line
from recsys.inference.scorer import Scorer

S = TypeVar("S")
Arrays = Mapping[str, NDArray[Any]]
_HEADER = "recsys.baseline"
LARGEST_VALUE = 1e15
"""Sums and products of such values are finite as float32, which scores are."""
_MATRIX = {"offsets": np.int64, "columns": np.int32, "values": np.float64}


def load_baseline(path: str | os.PathLike[str], name: str, num_items: int) -> Scorer:
    """Read the baseline of a name and catalogue size that `save_counts` wrote, or InputError."""
    with opened(path, _HEADER, "a baseline") as (tensors, facts):
        scorer: Scorer = read_counts(BASELINES[name].kind, tensors, facts, num_items)
    return scorer


def save_counts(
    scorer: Any, path: str | os.PathLike[str], header: str = _HEADER, **facts: Any
) -> None:
    """Write a dataclass of matrices, arrays and settings; its settings and the facts as JSON."""
    tensors: dict[str, NDArray[Any]] = {}
    settings: dict[str, Any] = {}
    for field in fields(scorer):
        name, value = field.name, getattr(scorer, field.name)
        if isinstance(value, csr_array):
            arrays = (value.indptr, value.indices, value.data)
            for (suffix, dtype), array in zip(_MATRIX.items(), arrays, strict=True):
                tensors[f"{name}.{suffix}"] = array.astype(dtype, copy=False)
        elif isinstance(value, np.ndarray):
            tensors[name] = np.ascontiguousarray(value)
        else:
            settings[name] = asdict(value)
    save_file(tensors, path, {header: json.dumps(facts | {"settings": settings}, sort_keys=True)})


def read_counts(kind: type[S], tensors: Arrays, facts: Any, num_items: int) -> S:
    """Make a dataclass that `save_counts` wrote; a KeyError or ValueError if it is another."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, hint in ((field.name, hints[field.name]) for field in fields(kind)):  # type: ignore[arg-type]
        if hint is csr_array:
            values[name] = _read_matrix(tensors, name, num_items + 1)
        elif is_dataclass(hint):
            settings = json.dumps(facts["settings"][name])
            values[name] = TypeAdapter(hint).validate_json(settings, strict=True)
        elif len(tensors[name]) != num_items + 1:
            raise ValueError(f"{name} must have a row for each of {num_items} items and PAD")
        else:
            values[name] = finite(name, tensors[name])
    return kind(**values)


@contextmanager
def opened(path: str | os.PathLike[str], header: str, noun: str) -> Iterator[tuple[Arrays, Any]]:
    """Yield the tensors of a file and the facts in its header; what is wrong is an InputError."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads(file.metadata()[header])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        yield tensors, facts
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as {noun}: {first_line(error)}") from error


def _read_matrix(tensors: Arrays, name: str, size: int) -> csr_array:
    """Build a matrix [I + 1, I + 1]; an index outside it would end the process that uses it."""
    for suffix, dtype in _MATRIX.items():
        if (array := tensors[f"{name}.{suffix}"]).dtype != dtype or array.ndim != 1:
            raise ValueError(f"{name}.{suffix} must be one row of {np.dtype(dtype)}")
    offsets, columns, values = (tensors[f"{name}.{suffix}"] for suffix in _MATRIX)
    if offsets[-1:].tolist() != [len(columns)] or (np.diff(offsets) < 0).any():
        raise ValueError(f"{name}.offsets must ascend to {len(columns)}")  # scipy may not look
    matrix = csr_array((finite(f"{name}.values", values), columns, offsets), shape=(size, size))
    matrix.check_format(full_check=True)
    return matrix


def finite(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array if the scores that are computed from it will be finite."""
    if not (np.abs(array) <= LARGEST_VALUE).all():
        raise ValueError(f"{name} must be finite, and at most {LARGEST_VALUE:g}")
    return array
