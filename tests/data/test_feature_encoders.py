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
    CategoriesFeature,
    CategoryFeature,
    Feature,
    NumberFeature,
    TextFeature,
    parse_experiment,
)
from recsys.data.features.encoders import FeatureEncoder
from recsys.errors import InputError

BRAND, PRICE = CategoryFeature(column="brand"), NumberFeature(kind="number", column="price")
TAGS, TITLE = (
    CategoriesFeature(kind="categories", column="tags"),
    TextFeature(kind="text", column="title", dims=2),
)
ITEMS = pl.DataFrame(
    {
        "item_id": [7, 8, 9, 11],
        "brand": ["Volvo", "Saab", " Volvo ", ""],
        "tags": ["p|q", "q|r|q", None, "||r"],
        "price": ["1", "3", None, "5.0"],
        "title": ["red big car", "Big CAR", "red bus", "a bus"],
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


def test_texts_that_share_words_are_similar() -> None:
    """big and car occur together, bus does not; "a" is not a word. Vectors have length 1."""
    items = pl.concat([ITEMS, ITEMS.head(1).with_columns(item_id=pl.lit(12, pl.Int64), title=None)])
    found = fitted(TITLE).encode(items).numbers
    assert np.linalg.norm(found, axis=1) == pytest.approx([0, 1, 1, 1, 1, 0])
    cosine = found @ found.T
    assert cosine[1, 2] > 0.9 > cosine[1, 3] > cosine[1, 4]
    assert cosine[3, 4] > 0.8 > cosine[2, 3] > cosine[2, 4]


def test_new_items_are_encoded_like_known_ones_and_unknown_values_are_missing() -> None:
    encoder = fitted(BRAND, TAGS, PRICE, TITLE)
    new = pl.DataFrame(
        {
            "item_id": [1, 2],
            "brand": ["Saab", "Fiat"],
            "tags": ["r|x", "x"],
            "price": [3, None],
            "title": ["car big", "unheard of"],
        }
    )
    found = encoder.encode(new)
    assert found.categories.tolist() == [[0, 0], [1, 5], [0, 0]]
    assert found.shares.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert found.numbers[1:, :2].tolist() == [[0, 0], [0, 1]]
    assert found.numbers[1, 2:] == pytest.approx(encoder.encode(ITEMS).numbers[2, 2:])
    assert not found.numbers[2, 2:].any()


@pytest.mark.parametrize(
    ("feature", "changes", "message"),
    [
        (
            CategoryFeature(column="brnad"),
            {},
            "category 'brnad': no such column among brand, tags, price, title",
        ),
        (CategoryFeature(column="item_id"), {}, "category 'item_id': no such column"),
        (BRAND, {"brand": [None, "", " ", None]}, "category 'brand': no item has a value"),
        (BRAND, {"brand": ["Saab"] * 4}, "category 'brand': all items have the same value, 'Saab'"),
        (BRAND, {"brand": [*"abc", None]}, "category 'brand': no two items share a value"),
        (
            BRAND,
            {"brand": [["a"], ["b"], ["a"], []]},
            "category 'brand': must be a column of single values",
        ),
        (TAGS, {"tags": ["p|q", "q|p", "q|p|q", "p|q"]}, "categories 'tags': all items have the"),
        (PRICE, {"price": [1, 1, 1, 1]}, "number 'price': all items have the same value, 1"),
        (
            PRICE,
            {"price": ["1", "2", "?", "4"]},
            "number 'price': item 9 has '[?]', which is not a",
        ),
        (PRICE, {"price": [1.0, 2.0, 3.0, math.inf]}, "number 'price': item 11 has inf, which"),
        (PRICE, {"price": [math.nan] * 4}, "number 'price': no item has a value"),
        (TITLE, {"title": ["a", "b", "cc", "dd"]}, "text 'title': no two items share a word"),
        (TITLE, {"title": ["a b"] * 4}, "text 'title': all items have the same value"),
        (TITLE.model_copy(update={"dims": 4}), {}, "text 'title': dims must be below 4, the words"),
    ],
)
def test_a_feature_without_information_is_refused_by_name(
    feature: Feature, changes: dict[str, Sequence[Any]], message: str
) -> None:
    items = ITEMS.with_columns(pl.Series(name, values) for name, values in changes.items())
    with pytest.raises(InputError, match=f"model.item_features: {message}") as error:
        fitted(feature, items=items)
    assert "\n" not in str(error.value)


def test_a_saved_encoder_encodes_as_before(tmp_path: Path) -> None:
    features = (TITLE, BRAND, PRICE, TAGS)
    encoder = fitted(*features)
    encoder.save(tmp_path / "one")
    loaded = FeatureEncoder.load(tmp_path / "one", "item", features)
    loaded.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    one, other = encoder.encode(ITEMS), loaded.encode(ITEMS)
    for name in ("categories", "shares", "numbers"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_a_file_of_other_features_is_refused(tmp_path: Path) -> None:
    fitted(BRAND, PRICE).save(tmp_path / "file")
    for features in ((BRAND,), (PRICE, BRAND), (BRAND, PRICE, TAGS)):
        with pytest.raises(InputError, match="file: cannot be read as item features"):
            FeatureEncoder.load(tmp_path / "file", "item", features)
    (tmp_path / "file").write_bytes(b"no safetensors")
    with pytest.raises(InputError, match="file: cannot be read as item features"):
        FeatureEncoder.load(tmp_path / "file", "item", (BRAND, PRICE))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"item_features": ["brand", "brand"]}, "brand is listed twice as category"),
        ({"item_features": ["count"]}, "count cannot be a feature"),
        ({"item_features": [{"kind": "numeric", "column": "x"}]}, "item_features.0: the kind must"),
        (
            {"item_features": [{"kind": "text", "column": "x", "dim": 3}]},
            "dim: unknown key; did you mean 'dims'",
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
