"""The simulated shop: purchase histories with planted rules whose ground truth is kept.

It is the embedded default dataset: made in seconds from a seed, and it has what real shops have
(long-tailed popularity, seasons, tastes that drift, goods bought again and again, short and long
histories) and what they lack: the knowledge of why a purchase was made.
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
    """A shop's log and what is known about it."""

    interactions: pl.DataFrame
    """user_id, item_id, timestamp (whole seconds, rising within each user), by user and time."""
    products: pl.DataFrame
    """item_id, name, category, by item_id."""
    rules: tuple[Rule, ...]
    """The planted rules, in product ids."""
    truth: pl.DataFrame
    """One row per planted purchase: user_id, item_id, timestamp, position (its place in the user's
    history, from 0), rule (name), causes (list of item ids, all bought before)."""


def make_shop(seed: int = 0, num_customers: int = 10_000, num_products: int = 1_000) -> Shop:
    """Open a shop and let its customers buy; equal arguments give equal frames.

    Raises:
        InputError: no customers, or a number of products that the shelves cannot make.
    """
    if num_customers < 1:
        raise InputError(f"num_customers: at least 1, not {num_customers}")
    rng = np.random.default_rng(seed)
    item_ids, user_ids = _ids("P", 4, num_products), _ids("C", 5, num_customers)
    # Shuffled, so that an id says nothing of the product.
    stock = list_products(num_products)[rng.permutation(num_products)].with_columns(
        item_id=item_ids
    )
    named = dict(stock.select("name", "item_id").iter_rows())
    rules = tuple(
        replace(rule, causes=tuple(named[c] for c in rule.causes), effect=named[rule.effect])
        for rule in PLANTED
    )
    bought = simulate_purchases(num_customers, stock, rules, rng)
    # Whole seconds, one more for each earlier purchase: no two at the same time.
    seconds = np.floor(bought.times).astype(np.int64) + bought.positions
    history = pl.DataFrame(
        {
            "user_id": user_ids.gather(bought.users),
            "item_id": item_ids.gather(bought.items),
            "timestamp": OPENED + pl.Series(seconds * 1_000_000).cast(pl.Duration("us")),
            "position": bought.positions,
            "number": bought.rules,
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
    """The same purchases dealt out anew: which item was bought in which row is permuted at random.

    Popularity, history lengths and timestamps stay; every relation between the items of a history
    goes. Rules and truth are those of the shop given. A model fitted to the shuffled shop is judged
    on the shop itself, where it should recover nothing.
    """
    items = shop.interactions["item_id"]
    dealt = items.gather(np.random.default_rng(seed).permutation(len(items)))
    return replace(shop, interactions=shop.interactions.with_columns(dealt))


def _ids(letter: str, width: int, count: int) -> pl.Series:
    """Product or customer ids in order: P0001, P0002, ..."""
    width = max(width, len(str(count)))
    numbers = pl.Series(range(1, count + 1), dtype=pl.String).str.zfill(width)
    return letter + numbers
