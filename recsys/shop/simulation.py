"""The simulated shop: purchase histories with planted rules and their ground truth.

It is the built-in default dataset, generated in seconds from a seed. It has the features of real
shops (long-tailed popularity, seasons, drifting tastes, repeat purchases, short and long histories)
and one that they lack: the cause of each planted purchase is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import polars as pl

from recsys.errors import InputError
from recsys.shop.customers import simulate_purchases
from recsys.shop.products import PLANTED, Rule, list_products

OPENED = datetime(2023, 1, 1)  # noqa: DTZ001 (the timestamps of the log are naive)


@dataclass(frozen=True, slots=True)
class Shop:
    """A shop's log and its ground truth."""

    interactions: pl.DataFrame
    """user_id, item_id, timestamp (full seconds, increasing for each user), by user and time."""
    products: pl.DataFrame
    """item_id, name, category, by item_id."""
    rules: tuple[Rule, ...]
    """The planted rules, with product ids."""
    truth: pl.DataFrame
    """One row per planted purchase: user_id, item_id, timestamp, position (in the user's history,
    from 0), rule (name), causes (list of item ids, all bought before)."""


def make_shop(seed: int = 0, num_customers: int = 10_000, num_products: int = 1_000) -> Shop:
    """Simulate a shop and its customers; equal arguments give equal frames.

    Raises:
        InputError: there are no customers, or more or fewer products than the shelves allow.
    """
    if num_customers < 1:
        raise InputError(f"num_customers: must be at least 1, not {num_customers}")
    rng = np.random.default_rng(seed)
    item_ids, user_ids = _ids("P", 4, num_products), _ids("C", 5, num_customers)
    # Shuffled, so that ids carry no information about products.
    stock = list_products(num_products)[rng.permutation(num_products)].with_columns(
        item_id=item_ids
    )
    named = dict(stock.select("name", "item_id").iter_rows())
    rules = tuple(
        replace(rule, causes=tuple(named[c] for c in rule.causes), effect=named[rule.effect])
        for rule in PLANTED
    )
    purchases = simulate_purchases(num_customers, stock, rules, rng)
    # Full seconds, plus one for each earlier purchase: no two are at the same time.
    seconds = np.floor(purchases.times).astype(np.int64) + purchases.positions
    history = pl.DataFrame(
        {
            "user_id": user_ids.gather(purchases.users),
            "item_id": item_ids.gather(purchases.items),
            "timestamp": OPENED + pl.Series(seconds * 1_000_000).cast(pl.Duration("us")),
            "position": purchases.positions,
            "number": purchases.rules,
        }
    )
    planted = pl.DataFrame(
        {
            "number": np.arange(len(rules)),
            "rule": [rule.name for rule in rules],
            "causes": [list(rule.causes) for rule in rules],
        }
    )
    truth = history.join(planted, on="number", maintain_order="left").drop("number")
    log = history.select("user_id", "item_id", "timestamp")
    return Shop(log, stock.select("item_id", "name", "category"), rules, truth)


def shuffled(shop: Shop, seed: int = 0) -> Shop:
    """Return the shop with the items of all purchases permuted at random.

    Popularity, history lengths and timestamps remain; all relations between the items of a history
    are destroyed. Rules and truth are those of the given shop. A model fitted to the shuffled shop
    and judged on the original shop should recover nothing.
    """
    items = shop.interactions["item_id"]
    permuted = items.gather(np.random.default_rng(seed).permutation(len(items)))
    return replace(shop, interactions=shop.interactions.with_columns(permuted))


def _ids(letter: str, width: int, count: int) -> pl.Series:
    """Return product or customer ids in order: P0001, P0002, ..."""
    width = max(width, len(str(count)))
    numbers = pl.Series(range(1, count + 1), dtype=pl.String).str.zfill(width)
    return letter + numbers
