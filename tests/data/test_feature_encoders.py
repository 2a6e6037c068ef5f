"""Item features: columns of an item table as categories and numbers, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.config import (
    Feature,
    parse_experiment,
)
from recsys.data.features import Encoders, FeatureEncoder, features_of
from recsys.errors import InputError

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
