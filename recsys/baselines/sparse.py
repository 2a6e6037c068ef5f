"""The parts of a fitted baseline in a file: matrices over the items, rows of numbers, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from scipy.sparse import csr_array

S = TypeVar("S")
_LARGEST_SETTING = 1e6
LARGEST_VALUE = 1e15
"""Sums and products of such values are finite as float32, which scores are."""
_TYPES = {"offsets": np.int64, "columns": np.int32, "values": np.float64}


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
        place = ".".join(map(str, wrong["loc"]))
        raise ValueError(f"{place}={wrong['input']!r}: {wrong['msg']}") from error
