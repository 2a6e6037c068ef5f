"""The simulated shop: purchase histories with planted rules whose ground truth is kept.

It is the embedded default dataset: made in seconds from a seed, and it has what real shops have
(long-tailed popularity, seasons, tastes that drift, goods bought again and again, short and long
histories) and what they lack: the knowledge of why a purchase was made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import permutations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.shop_catalogue import PLANTED, SEASONS, Rule, list_products
from recsys.errors import InputError

OPENED = datetime(2023, 1, 1)
YEARS = 3
"""The shop's log runs for so many years."""

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

    Each customer's life is a row of own choices, by popularity, season and a taste that drifts.
    Purchases that follow from earlier ones are put between: first the effects of the planted rules,
    then repeats of consumables. What would come after the end of that life is left out.

    Raises:
        InputError: no customers, or a number of products that the shelves cannot make.
    """
    if num_customers < 1:
        raise InputError(f"num_customers: at least 1, not {num_customers}")
    rng = np.random.default_rng(seed)
    stock = list_products(num_products)[rng.permutation(num_products)]
    number = {name: item for item, name in enumerate(stock["name"])}
    rules = [(tuple(number[c] for c in rule.causes), number[rule.effect]) for rule in PLANTED]
    lengths = np.clip(rng.lognormal(2.6, 0.8, num_customers).astype(np.int64), *_OWN_CHOICES)
    times = _times(lengths, rng)
    popularity = _popularity(num_products, rules, rng)
    own = _own_choices(lengths, times, popularity, stock, rng)
    caused = _with_effects(own, rules, num_customers, rng)
    lives = _with_repeats(caused, lengths, stock["consumable"].to_numpy(), rng)
    return _shop(lives, lengths, times, stock)


def shuffled(shop: Shop, seed: int = 0) -> Shop:
    """The same purchases dealt out anew: which item was bought in which row is permuted at random.

    Popularity, history lengths and timestamps stay; every relation between the items of a history
    goes. Rules and truth are those of the shop given. A model fitted to the shuffled shop is judged
    on the shop itself, where it should recover nothing.
    """
    items = shop.interactions["item_id"]
    dealt = items.gather(np.random.default_rng(seed).permutation(len(items)))
    return replace(shop, interactions=shop.interactions.with_columns(dealt))


def _shop(
    lives: Purchases,
    lengths: NDArray[np.int64],
    times: NDArray[np.float64],
    stock: pl.DataFrame,
) -> Shop:
    """The purchases up to the end of each life, dated and named."""
    lives = lives[lives.turns < lengths[lives.users]]
    lives = lives[np.lexsort((lives.turns, lives.users))]
    positions = np.arange(len(lives.users)) - _starts(np.bincount(lives.users))[lives.users]

    turn = np.floor(lives.turns).astype(np.int64)
    place = _starts(lengths + 1)[lives.users] + turn
    elapsed = times[place] + (lives.turns - turn) * (times[place + 1] - times[place])
    # Whole seconds, one more for each earlier purchase: no two at the same time.
    seconds = np.floor(elapsed).astype(np.int64) + positions

    item_ids = _ids("P", 4, len(stock))
    history = pl.DataFrame(
        {
            "user_id": _ids("C", 5, len(lengths)).gather(lives.users),
            "item_id": item_ids.gather(lives.items),
            "timestamp": pl.Series(seconds * 1_000_000).cast(pl.Duration("us")) + OPENED,
            "position": positions,
            "number": lives.rules,
        }
    )
    products = stock.select(item_ids.alias("item_id"), "name", "category")
    named = dict(products.select("name", "item_id").iter_rows())
    rules = tuple(
        replace(rule, causes=tuple(named[c] for c in rule.causes), effect=named[rule.effect])
        for rule in PLANTED
    )
    planted = pl.DataFrame(
        {
            "number": range(len(rules)),
            "rule": [rule.name for rule in rules],
            "causes": [list(rule.causes) for rule in rules],
        },
        schema_overrides={"number": pl.Int64},
    )
    truth = history.join(planted, on="number", maintain_order="left").drop("number")
    return Shop(history.drop("position", "number"), products, rules, truth)


def _ids(letter: str, width: int, count: int) -> pl.Series:
    """Product or customer ids in order: P0001, P0002, ..."""
    width = max(width, len(str(count)))
    numbers = pl.Series(range(1, count + 1), dtype=pl.String).str.zfill(width)
    return letter + numbers
