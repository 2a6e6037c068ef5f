"""Features: columns of tables as categories, numbers and vectors, and the ids of the tables."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import torch

from recsys.config.data import DataConfig
from recsys.config.files import parse_experiment
from recsys.config.model import Feature
from recsys.data.appending import append
from recsys.data.features import Encoders, FeatureEncoder, features_of
from recsys.data.prepared import prepare
from recsys.errors import InputError
from tests.helpers.logs import log_of_columns

BRAND, PRICE = Feature(column="brand"), Feature(kind="number", column="price")
TAGS = Feature(kind="categories", column="tags")
ITEMS = pl.DataFrame(
    {
        "item_id": [7, 8, 9, 11],
        "brand": ["Volvo", "Saab", " Volvo ", ""],
        "tags": ["p|q", "q|r|q", None, "||r"],
        "price": ["1", "3", None, "5.0"],
    }
)


def fitted(*features: Feature, items: pl.DataFrame = ITEMS) -> FeatureEncoder:
    return FeatureEncoder.fit("item", features, items)


def test_categories_are_numbered_together_with_equal_shares() -> None:
    """Saab 1, Volvo 2; p 3, q 4, r 5. The shares of a column sum to 1."""
    encoder = fitted(BRAND, TAGS)
    found = encoder.encode(ITEMS)
    assert encoder.num_categories == 5
    assert found.categories.tolist() == [[0, 0, 0], [2, 3, 4], [1, 4, 5], [2, 0, 0], [5, 0, 0]]
    assert found.shares.tolist() == [[0, 0, 0], [1, 0.5, 0.5], [1, 0.5, 0.5], [1, 0, 0], [1, 0, 0]]
    assert found.numbers.shape == (5, 0)


def test_numbers_are_standardised_and_missing_ones_are_marked() -> None:
    """1, 3 and 5 have mean 3 and standard deviation √(8/3)."""
    found = fitted(PRICE).encode(ITEMS).numbers
    far = 2 / math.sqrt(8 / 3)
    expected = [[0, 0], [-far, 0], [0, 0], [0, 1], [far, 0]]
    assert found.tolist() == [pytest.approx(row) for row in expected]


def test_new_items_are_encoded_like_known_ones_and_unknown_values_are_missing() -> None:
    encoder = fitted(BRAND, TAGS, PRICE)
    new = pl.DataFrame(
        {
            "item_id": [1, 2],
            "brand": ["Saab", "Fiat"],
            "tags": ["r|x", "x"],
            "price": [3, None],
        }
    )
    found = encoder.encode(new)
    assert found.categories.tolist() == [[0, 0], [1, 5], [0, 0]]
    assert found.shares.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert found.numbers[1:].tolist() == [[0, 0], [0, 1]]
    constant = fitted(PRICE, items=ITEMS.with_columns(price=pl.Series([0.1, 0.1, 0.1, None])))
    assert constant.encode(new).numbers[1, 0] == pytest.approx(2.9)  # 0.1 has no exact mean


@pytest.mark.parametrize(
    ("feature", "changes", "message"),
    [
        (
            Feature(column="brnad"),
            {},
            "category 'brnad': no such column among brand, tags, price",
        ),
        (Feature(column="item_id"), {}, "category 'item_id': no such column"),
        (BRAND, {"brand": [None, "", " ", None]}, "category 'brand': no item has a value"),
        (BRAND, {"brand": ["Saab"] * 4}, "category 'brand': all items have the same value, 'Saab'"),
        (BRAND, {"brand": [*"abc", None]}, "category 'brand': no two items share a value"),
        (
            BRAND,
            {"brand": [["a"], ["b"], ["a"], []]},
            "category 'brand': must be a column of single values",
        ),
        (PRICE, {"price": [1, 1, 1, 1]}, "number 'price': all items have the same value, 1"),
        (
            PRICE,
            {"price": ["1", "2", "?", "4"]},
            "number 'price': item 9 has '[?]', which is not a",
        ),
        (PRICE, {"price": [1.0, 2.0, 3.0, math.inf]}, "number 'price': item 11 has inf, which"),
    ],
)
def test_a_feature_without_information_is_refused_by_name(
    feature: Feature, changes: dict[str, Sequence[Any]], message: str
) -> None:
    items = ITEMS.with_columns(pl.Series(name, values) for name, values in changes.items())
    with pytest.raises(InputError, match=f"model.item_features: {message}") as error:
        fitted(feature, items=items)
    assert "\n" not in str(error.value)


def test_what_was_learned_is_saved(tmp_path: Path) -> None:
    tree = {"item_features": ["brand", {"kind": "number", "column": "price"}]}
    model = parse_experiment({"model": tree}).model
    encoder = fitted(*features_of(model, "item"))
    Encoders(encoder).save(tmp_path)
    loaded = Encoders.load(tmp_path, model).items
    assert loaded is not None
    one, other = encoder.encode(ITEMS), loaded.encode(ITEMS)
    for name in ("categories", "shares", "numbers"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    for features in (["brand"], [*reversed(tree["item_features"])], ["brand", "price", "tags"]):
        model = parse_experiment({"model": {"item_features": features}}).model
        with pytest.raises(InputError, match="cannot be read as features"):
            Encoders.load(tmp_path, model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"item_features": ["brand", "brand"]}, "brand is listed twice as category"),
        ({"item_features": ["count"]}, "count cannot be a feature"),
        (
            {"item_features": [{"kind": "numeric", "column": "x"}]},
            "item_features.0.kind: input should be",
        ),
        (
            {"item_features": [{"kind": "categories", "column": "x", "separatr": ";"}]},
            "separatr: unknown key; did you mean 'separator'",
        ),
        ({"item_ids": False}, "model.item_ids: false needs item_features"),
        ({"interaction_features": ["item_id"]}, "item_id cannot be a feature"),
        ({"user_features": ["user_id"]}, "user_id cannot be a feature"),
        *(
            ({"kind": kind, f"{entity}_features": ["x"]}, f"{entity}_features: unknown key")
            for kind in ("masked_item", "factorisation_machine", "sequence_to_sequence")
            for entity in ("item", "interaction", "user")
        ),
    ],
)
def test_features_that_cannot_be_configured(model: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment({"model": model})
    assert message in str(caught.value)


# --- Vectors --------------------------------------------------------------------------------------

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
    assert encoder.num_numbers == 0
    with pytest.raises(InputError, match="item 'b' has no 2 finite numbers"):
        encoder.vectors(items([None, [1.0, 2.0, 3.0], None, None]))
    nothing = encoder.vectors(items([None] * 4))
    assert nothing["text"].tolist() == [[0, 0]] * 5


def test_vectors_are_of_items_only() -> None:
    for entity in ("user", "interaction"):
        tree = {"model": {f"{entity}_features": [{"kind": "vector", "column": "text"}]}}
        with pytest.raises(InputError, match="only an item has vectors"):
            parse_experiment(tree)


# --- Tables of items and users --------------------------------------------------------------------

LOG = log_of_columns([1, 1, 1, 2, 2, 2], [5, 6, 5, 6, 5, 6], range(6))
COLOURS = ["red", "blue"]


@pytest.mark.parametrize(
    "ids", [[5.0, 6.0, None], [5.0, 6.0, float("nan")], ["5.0", "6.0", "NULL"], [" 5", "6 ", ""]]
)
def test_ids_of_a_table(ids: list[Any], tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": ids, "colour": [*COLOURS, "none"]})
    found = prepare(LOG, out=tmp_path / "data", items=items)
    assert found.item_table.to_dict(as_series=False) == {"item_id": [5, 6], "colour": COLOURS}


def test_ids_of_a_user_table_with_sessions(tmp_path: Path) -> None:
    users = pl.DataFrame({"user_id": [1.0, 2.0], "colour": COLOURS})
    found = prepare(LOG, DataConfig(session_gap=100), tmp_path / "data", users=users)
    assert found.user_table["colour"].to_list() == COLOURS


def test_text_ids_remain_text(tmp_path: Path) -> None:
    """A log with 5.0 and A-1 among its ids has them as text, and so has its table."""
    log = LOG.with_columns(item_id=pl.Series(["5.0", "A-1"] * 3))
    items = pl.DataFrame({"item_id": ["5.0"], "colour": ["red"]})
    found = prepare(log, out=tmp_path / "data", items=items)
    assert found.item_table["colour"].to_list() == ["red", None]


@pytest.mark.parametrize(
    ("ids", "rule"),
    [
        (pl.Series([[5], [6]]), "ids must be integers or text, not List(Int64)"),
        (pl.Series([bytes([255]), b"6"]), "ids must be integers or text, not Binary"),
    ],
)
def test_ids_of_other_types_are_refused(ids: pl.Series, rule: str, tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": ids, "colour": COLOURS})
    prepare(LOG, out=tmp_path / "data")
    told = f"column 'item_id': {re.escape(rule)}"
    with pytest.raises(InputError, match=told):
        prepare(LOG, out=tmp_path / "data", items=items)
    with pytest.raises(InputError, match=told):
        append(LOG.with_columns(pl.col("timestamp") + 9), tmp_path / "data", items=items)
