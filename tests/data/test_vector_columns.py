"""Columns of vectors: what is read, what is refused, and what is stored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import torch

from recsys.config import Feature, parse_experiment
from recsys.data.features import FeatureEncoder
from recsys.data.prepared import prepare
from recsys.errors import InputError

TEXT = Feature(kind="vector", column="text")
ROWS = [[3.0, 4.0], [0.0, -2.0], None, [0.0, 0.0]]
UNIT = [[0, 0], [0.6, 0.8], [0, -1], [0, 0], [0, 0]]
"""Their directions after the row of PAD; those of no vector and of zeros are zeros."""


def items(rows: list[Any], dtype: pl.DataType | None = None) -> pl.DataFrame:
    return pl.DataFrame({"item_id": [*"abcd"], "text": pl.Series(rows, dtype=dtype)})


def encoded(table: pl.DataFrame) -> torch.Tensor:
    return FeatureEncoder.fit("item", (TEXT,), table).vectors(table)["text"]


@pytest.mark.parametrize("inner", [pl.Float16, pl.Float32, pl.Float64])
@pytest.mark.parametrize("arrays", [False, True])
def test_vectors_have_length_1_and_half_precision(inner: type[pl.DataType], arrays: bool) -> None:
    found = encoded(items(ROWS, pl.Array(inner, 2) if arrays else pl.List(inner)))
    assert found.dtype == torch.float16
    assert found.tolist() == [pytest.approx(row, abs=1e-3) for row in UNIT]


@pytest.mark.parametrize("size", [1e-300, 1e-8, 1e6, 1e300])
def test_no_vector_is_too_large_or_too_small_for_half_precision(size: float) -> None:
    rows = [None if row is None else [size * number for number in row] for row in ROWS]
    assert encoded(items(rows)).tolist() == [pytest.approx(row, abs=1e-3) for row in UNIT]


def arrow() -> pa.Table:
    rows = pa.array([3.0, 4.0, 0.0, -2.0], pa.float32())
    return pa.table(
        {"item_id": ["hat", "socks"], "text": pa.FixedSizeListArray.from_arrays(rows, 2)}
    )


@pytest.mark.parametrize(
    "table",
    [
        pl.DataFrame({"item_id": ["hat", "socks"], "text": np.array(ROWS[:2])}),
        pd.DataFrame({"item_id": ["hat", "socks", "x"], "text": [*ROWS[:2], math.nan]}),
        pd.DataFrame({"item_id": ["hat", "socks"], "text": [*np.array(ROWS[:2], np.float32)]}),
        arrow(),
    ],
)
def test_frames_of_all_libraries(table: Any, tiny_log: pl.DataFrame, tmp_path: Path) -> None:
    dataset = prepare(tiny_log, out=tmp_path / "data", items=table)
    found = encoded(dataset.item_table)
    assert found[3].tolist() == pytest.approx([0.6, 0.8], abs=1e-3)
    assert found[5].tolist() == [0, -1]
    assert not found[[0, 1, 2, 4]].any()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*"abcd"], "must be a column of lists of floats, not of String"),
        ([[1], [2], [3], [4]], "must be a column of lists of floats, not of List(Int64)"),
        ([None] * 4, "no item has a vector"),
        ([[1.0], None, [1.0, 2.0, 3.0], [1.0]], "item 'c' has no 1 finite numbers"),
        ([[], [], [], []], "item 'a' has no 1 finite numbers"),
        ([None, [1.0, 2.0], [3.0, math.nan], [5.0, 6.0]], "item 'c' has no 2 finite numbers"),
        ([[1.0], [None], [3.0], [4.0]], "item 'b' has no 1 finite numbers"),
    ],
)
def test_other_columns_are_refused_by_name(rows: list[Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        encoded(items(rows, pl.List(pl.Float64) if rows == [[]] * 4 else None))
    assert f"model.item_features: vector 'text': {message}" in str(caught.value)


def test_items_of_a_model_have_its_length() -> None:
    encoder = FeatureEncoder.fit("item", (TEXT,), items(ROWS))
    assert (encoder.vector_dims, encoder.num_numbers) == ({"text": 2}, 0)
    with pytest.raises(InputError, match="item 'b' has no 2 finite numbers"):
        encoder.vectors(items([None, [1.0, 2.0, 3.0], None, None]))
    nothing = encoder.vectors(items([None] * 4))
    assert nothing["text"].tolist() == [[0, 0]] * 5


def test_vectors_are_of_items_only() -> None:
    for entity in ("user", "interaction"):
        tree = {"model": {f"{entity}_features": [{"kind": "vector", "column": "text"}]}}
        with pytest.raises(InputError, match="only an item has vectors"):
            parse_experiment(tree)
