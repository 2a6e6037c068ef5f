"""The simulated shop has its documented properties."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal, assert_series_equal

from recsys.errors import InputError
from recsys.shop.products import PLANTED, SHELVES
from recsys.shop.simulation import Shop, make_shop, shuffled


@pytest.fixture(scope="module")
def shop() -> Shop:
    return make_shop()


@pytest.fixture(scope="module")
def bought(shop: Shop) -> dict[str, list[str]]:
    return histories(shop.interactions)


def histories(log: pl.DataFrame) -> dict[str, list[str]]:
    return dict(log.group_by("user_id", maintain_order=True).agg("item_id").iter_rows())


def share_bought(shop: Shop, item: str) -> float:
    return float((shop.interactions["item_id"] == item).to_numpy().mean())


def soon_after(bought: dict[str, list[str]], causes: Sequence[str], effect: str) -> float:
    """Return how often the effect is among the six purchases after all causes."""
    followed = []
    for history in bought.values():
        if set(causes) <= set(history):
            complete = max(history.index(cause) for cause in causes)
            after = history[complete + 1 : complete + 7]
            if len(after) == 6:
                followed.append(effect in after)
    return float(np.mean(followed))


def soon_after_one(bought: dict[str, list[str]], cause: str, other: str, effect: str) -> float:
    """Return the same after one cause, if the other is not bought until the six purchases end."""
    followed = []
    for history in bought.values():
        if cause in history:
            place = history.index(cause)
            if other not in history[: place + 7] and len(history) >= place + 7:
                followed.append(effect in history[place + 1 : place + 7])
    return float(np.mean(followed))


def test_the_default_shop_has_its_documented_size_shape_and_order(shop: Shop) -> None:
    log, products = shop.interactions, shop.products
    assert log.columns == ["user_id", "item_id", "timestamp"]
    assert products.columns == ["item_id", "name", "category"]
    users = log["user_id"]
    assert (users.n_unique(), users.min(), users.max()) == (10_000, "C00001", "C10000")
    assert products["item_id"].to_list() == [f"P{number:04d}" for number in range(1, 1_001)]
    assert set(log["item_id"]) == set(products["item_id"])
    assert products["name"].n_unique() == 1_000
    assert products["category"].n_unique() == len(SHELVES)
    lengths = log.group_by("user_id").len()["len"].to_numpy()
    assert (lengths.min(), 120 <= lengths.max() <= 200) == (5, True)
    assert 20 <= lengths.mean() <= 30
    assert np.median(lengths) < 0.8 * lengths.mean()
    assert_frame_equal(log, log.sort("user_id", "timestamp"))
    assert not log.select(pl.struct("user_id", "timestamp").is_duplicated().any()).item()
    first, last = log.select(pl.min("timestamp"), pl.max("timestamp").alias("last")).row(0)
    assert datetime(2023, 1, 1) <= first < datetime(2023, 2, 1)
    assert datetime(2025, 12, 1) <= last < datetime(2026, 1, 1)


# --- the rules


def test_rules_name_products_and_explain_a_sixth_of_the_purchases(shop: Shop) -> None:
    names = dict(shop.products.select("item_id", "name").iter_rows())
    assert [
        (rule.name, tuple(names[cause] for cause in rule.causes), names[rule.effect])
        for rule in shop.rules
    ] == [(rule.name, rule.causes, rule.effect) for rule in PLANTED]
    for attribute in ("name", "effect"):
        assert len({getattr(rule, attribute) for rule in shop.rules}) == len(shop.rules) >= 20
    assert 0.13 <= len(shop.truth) / len(shop.interactions) <= 0.25
    fired = shop.truth["rule"].value_counts()
    assert len(fired) == len(shop.rules)
    assert fired["count"].to_numpy().min() >= 300


def test_effects_follow_their_causes_within_six_purchases(
    shop: Shop, bought: dict[str, list[str]]
) -> None:
    for rule in shop.rules:
        followed = soon_after(bought, rule.causes, rule.effect)
        assert rule.probability - 0.1 < followed < rule.probability + 0.1, rule.name
        assert followed > 5 * 6 * share_bought(shop, rule.effect), rule.name


def test_one_cause_of_a_conjunction_is_not_enough(shop: Shop, bought: dict[str, list[str]]) -> None:
    conjunctions = [rule for rule in shop.rules if len(rule.causes) == 2]
    assert len(conjunctions) >= 10
    for rule in conjunctions:
        (one, two), effect = rule.causes, rule.effect
        assert soon_after_one(bought, one, two, effect) < 0.04, rule.name
        assert soon_after_one(bought, two, one, effect) < 0.04, rule.name
        # Half of the customers who buy one cause neither bought the other nor buy it soon.
        assert max(soon_after(bought, [one], effect), soon_after(bought, [two], effect)) < 0.5


def test_truth_agrees_with_the_log(shop: Shop, bought: dict[str, list[str]]) -> None:
    log = shop.interactions.with_columns(position=pl.int_range(pl.len()).over("user_id"))
    found = shop.truth.join(log, on=log.columns, how="inner")
    assert len(found) == len(shop.truth)
    rules = {rule.name: rule for rule in shop.rules}
    for row in shop.truth.iter_rows(named=True):
        rule = rules[row["rule"]]
        assert (row["item_id"], tuple(row["causes"])) == (rule.effect, rule.causes)
        assert set(row["causes"]) <= set(bought[row["user_id"]][: row["position"]])
    assert not shop.truth.select(pl.struct("user_id", "rule").is_duplicated().any()).item()


def test_equal_seeds_give_equal_shops_and_others_do_not() -> None:
    first, again, other = (make_shop(seed, 1_500, 400) for seed in (1, 1, 2))
    for name in ("interactions", "products", "truth"):
        assert_frame_equal(getattr(first, name), getattr(again, name))
    assert not first.products.equals(other.products)
    assert not first.interactions["timestamp"].equals(other.interactions["timestamp"])


def test_shuffled_keeps_the_margins_and_destroys_the_rules(shop: Shop) -> None:
    mixed = shuffled(shop, seed=3)
    kept = ["user_id", "timestamp"]
    assert_frame_equal(mixed.interactions.select(kept), shop.interactions.select(kept))
    assert_series_equal(mixed.interactions["item_id"].sort(), shop.interactions["item_id"].sort())
    assert_frame_equal(mixed.interactions, shuffled(shop, seed=3).interactions)
    assert mixed.rules is shop.rules
    assert mixed.truth is shop.truth
    moved = mixed.interactions["item_id"] != shop.interactions["item_id"]
    assert moved.to_numpy().mean() > 0.95
    bought = histories(mixed.interactions)
    for rule in mixed.rules:
        chance = 1 - (1 - share_bought(mixed, rule.effect)) ** 6
        assert soon_after(bought, rule.causes, rule.effect) < chance + 0.04, rule.name


def test_smallest_shop_and_impossible_sizes() -> None:
    plain = sum(len(goods) for _, _, goods in SHELVES)
    tiny = make_shop(num_customers=1, num_products=plain)
    assert tiny.interactions["user_id"].unique().to_list() == ["C00001"]
    assert len(tiny.products) == plain
    with pytest.raises(InputError, match=f"^num_products: must be {plain} to .* not {plain - 1}$"):
        make_shop(num_products=plain - 1)
    with pytest.raises(InputError, match=r"^num_customers: must be at least 1, not 0$"):
        make_shop(num_customers=0)
