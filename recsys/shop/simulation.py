"""The simulated shop: purchase histories with planted rules and their ground truth.

It has what real shops have (long-tailed popularity, seasons, drifting tastes, repeat purchases) and
what they lack: the cause of each planted purchase is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import permutations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.errors import InputError
from recsys.shop.products import PLANTED, SEASONS, Rule, list_products

Indices = NDArray[np.int64]
OPENED = datetime(2023, 1, 1)  # noqa: DTZ001 (the timestamps of the log are naive)
YEARS = 3
MAX_DELAY = 3.0
"""The maximum number of the customer's own choices between the last cause and its effect."""
COMPANY = 0.25
"""The probability that a customer buys another cause of a conjunction together with one."""
FEWEST_CHOICES, MOST_CHOICES = 5, 100
"""The range of own choices per customer. What follows from them adds half as many or more."""
_YEAR = 365.25 * 24 * 3600
_QUARTERS = 4 * YEARS


@dataclass(frozen=True, slots=True)
class Shop:
    """A shop's log and its ground truth."""

    interactions: pl.DataFrame
    """user_id, item_id, timestamp (full seconds, increasing for each user), by user and time."""
    products: pl.DataFrame
    rules: tuple[Rule, ...]
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
    purchases = _simulate_purchases(num_customers, stock, rules, rng)
    # Full seconds, plus one for each earlier purchase: no two are at the same time.
    seconds = purchases["time"].floor().cast(pl.Int64) + purchases["position"]
    history = purchases.select(
        user_ids.gather(purchases["user"]).alias("user_id"),
        item_ids.gather(purchases["item"]).alias("item_id"),
        (OPENED + (seconds * 1_000_000).cast(pl.Duration("us"))).alias("timestamp"),
        *("position", "rule"),
    )
    planted = {"rule": np.arange(len(rules)), "name": [rule.name for rule in rules]}
    planted |= {"causes": [list(rule.causes) for rule in rules]}
    truth = history.join(pl.DataFrame(planted), on="rule", maintain_order="left").drop("rule")
    log = history.select("user_id", "item_id", "timestamp")
    products = stock.select("item_id", "name", "category")
    return Shop(log, products, rules, truth.rename({"name": "rule"}))


def shuffled(shop: Shop, seed: int = 0) -> Shop:
    """Return the shop with the items of all purchases permuted at random.

    Popularity, lengths and timestamps remain, and no relation between the items of a history.
    """
    items = shop.interactions["item_id"]
    permuted = items.gather(np.random.default_rng(seed).permutation(len(items)))
    return replace(shop, interactions=shop.interactions.with_columns(permuted))


def _ids(letter: str, width: int, count: int) -> pl.Series:
    """Return product or customer ids in order: P0001, P0002, ..."""
    width = max(width, len(str(count)))
    return letter + pl.Series(range(1, count + 1), dtype=pl.String).str.zfill(width)


def _simulate_purchases(
    num_customers: int, stock: pl.DataFrame, rules: Sequence[Rule], rng: np.random.Generator
) -> pl.DataFrame:
    """Simulate purchases from the stock (item_id, category, season, consumable).

    Each customer makes own choices, by popularity, season and a drifting taste, in turns 0, 1, ….
    Purchases that follow from earlier ones get turns between: first the effects of the planted
    rules, then repeats of consumables.

    Returns:
        By user and time: user, item (rows of the stock), time (seconds since the shop opened),
        position (in the user's history, from 0), rule (its number, or -1).
    """
    number = {item: row for row, item in enumerate(stock["item_id"])}
    causes = [[number[cause] for cause in rule.causes] for rule in rules]
    effects = [number[rule.effect] for rule in rules]
    lengths = rng.lognormal(2.6, 0.8, num_customers).astype(np.int64)
    lengths = np.clip(lengths, FEWEST_CHOICES, MOST_CHOICES)
    times = _times(lengths, rng)

    purchases = _own_choices(lengths, times, _popularity(len(stock), causes, rng), stock, rng)
    chances = [rule.probability for rule in rules]
    purchases = _with_effects(purchases, causes, effects, chances, num_customers, rng)
    purchases = _with_repeats(purchases, lengths, stock["consumable"].to_numpy(), rng)
    purchases = purchases.filter(purchases["turn"].to_numpy() < lengths[purchases["user"]])
    purchases = purchases[np.lexsort((purchases["turn"], purchases["user"]))]

    users, turns = purchases["user"].to_numpy(), purchases["turn"].to_numpy()
    index = _starts(lengths + 1)[users] + np.floor(turns).astype(np.int64)
    dates = times[index] + turns % 1 * (times[index + 1] - times[index])
    positions = np.arange(len(users)) - _starts(np.bincount(users))[users]
    return purchases.with_columns(time=dates, position=positions)


def _purchases(
    users: Indices, items: Indices | int, turns: NDArray[np.float64], rule: int = -1
) -> pl.DataFrame:
    table = pl.DataFrame({"user": users, "item": np.broadcast_to(items, users.shape)})
    return table.with_columns(pl.Series("turn", turns), pl.lit(rule, pl.Int64).alias("rule"))


def _starts(lengths: Indices) -> Indices:
    """Return where each user's rows start if they are concatenated."""
    return np.cumsum(lengths) - lengths


def _times(lengths: Indices, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw the times of own choices, and of each customer's end, since opening in s [N + U]."""
    years = YEARS * _YEAR
    joined = rng.uniform(0, years * 2 / 3, len(lengths))
    stay = (years - joined) * np.minimum(rng.uniform(0.4, 2, len(lengths)), 1)
    users = np.repeat(np.arange(len(lengths)), lengths + 1)
    # Sorting user + moment sorts the moments of each user: moments are below 1.
    moments = np.sort(users + rng.random(len(users))) - users
    return joined[users] + stay[users] * moments


def _popularity(
    num_products: int, causes: list[list[int]], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw the share of own choices of each product, before season and taste [I].

    Half goes to the causes, most to those of conjunctions, so that customers who bought one of two
    but not the other are common; the rest to all other products, by a Zipf-Mandelbrot law.
    """
    best = np.zeros(num_products)
    for group in causes:
        best[group] = np.maximum(best[group], len(group))
    best *= rng.uniform(0.7, 1.3, num_products)
    shares = (rng.permutation(num_products) + 20.0) ** -1.1
    shares[best > 0] = 0
    return (best / best.sum() + shares / shares.sum()) / 2


def _own_choices(
    lengths: Indices,
    times: NDArray[np.float64],
    popularity: NDArray[np.float64],
    stock: pl.DataFrame,
    rng: np.random.Generator,
) -> pl.DataFrame:
    """Draw the customers' own choices: first a category, by taste, then a product in it."""
    users = np.repeat(np.arange(len(lengths)), lengths)
    turns = np.arange(len(users)) - _starts(lengths)[users]
    dates = times[np.arange(len(users)) + users]
    months = (dates / (_YEAR / 12)).astype(np.int64) % 12
    categories = stock["category"].rank("dense").to_numpy().astype(np.int64) - 1
    shelf = np.argsort(categories, kind="stable")
    ends = np.cumsum(np.bincount(categories))
    wanted = (popularity * _seasonal_demand(stock))[:, shelf]
    wanted /= wanted.sum(axis=1, keepdims=True)
    bounds = np.pad(np.cumsum(wanted, axis=1), ((0, 0), (1, 0)))
    upper, lower = bounds[:, ends], bounds[:, np.concatenate([[0], ends[:-1]])]

    # A random walk with one step per quarter: after three years half of a taste is new.
    steps = rng.normal(size=(len(lengths), _QUARTERS, len(ends))).astype(np.float32)
    steps[:, 1:] *= 0.3
    tastes = np.cumsum(steps, axis=1)
    quarters = np.minimum(dates / (_YEAR / 4), _QUARTERS - 1).astype(np.int64)
    liking = tastes[users, quarters] + np.log(upper - lower).astype(np.float32)[months]
    chosen = np.argmax(liking + rng.gumbel(size=liking.shape).astype(np.float32), axis=1)

    low, high = lower[months, chosen], upper[months, chosen]
    # Month m's distribution lies in [m, m + 1), so that one search serves all months.
    edges = (np.arange(12)[:, None] + bounds[:, 1:]).ravel()
    drawn = months + low + (high - low) * rng.random(len(users))
    indices = np.searchsorted(edges, drawn, side="right") % len(popularity)
    return _purchases(users, shelf[indices], turns.astype(np.float64))


def _seasonal_demand(stock: pl.DataFrame) -> NDArray[np.float64]:
    """Return each product's demand in each month, relative to its average [12, I]."""
    months = np.arange(12)[:, None]
    peaks = stock["season"].replace_strict(
        {season: 3.0 * index for index, season in enumerate(SEASONS)}, default=None
    )
    waves = np.cos((months - peaks.fill_null(0.0).to_numpy()) * (2 * np.pi / 12))
    return np.where(peaks.is_null().to_numpy(), 1.0, np.exp(1.5 * waves))


def _with_effects(
    own: pl.DataFrame,
    causes: list[list[int]],
    effects: list[int],
    chances: list[float],
    num_customers: int,
    rng: np.random.Generator,
) -> pl.DataFrame:
    """Add the purchases that follow a rule, at most one per customer and rule.

    Before that, some customers who buy one cause of a conjunction also buy the others: causes occur
    together often enough for the rule to be learned, and separately so that single causes mislead.
    """
    first = {}
    items, users, turns = (own[name].to_numpy() for name in ("item", "user", "turn"))
    for cause in sorted({cause for group in causes for cause in group}):
        bought = items == cause
        first[cause] = np.full(num_customers, np.inf)
        np.minimum.at(first[cause], users[bought], turns[bought])
    chosen = {cause: turns.copy() for cause, turns in first.items()}
    parts = [own]

    def follow(turns: NDArray[np.float64], chance: float, item: int, rule: int) -> None:
        """Let some customers buy the item soon after a turn [U]; an infinite turn means never."""
        users = np.flatnonzero((rng.random(num_customers) < chance) & np.isfinite(turns))
        then = turns[users] + rng.uniform(0, MAX_DELAY, len(users))
        parts.append(_purchases(users, item, then, rule))
        if item in first:
            first[item][users] = np.minimum(first[item][users], then)

    for group in causes:
        for cause, companion in permutations(group, 2):
            follow(chosen[cause], COMPANY, companion, -1)
    for rule, (group, effect, chance) in enumerate(zip(causes, effects, chances, strict=True)):
        complete = np.max([first[cause] for cause in group], axis=0)
        follow(complete, chance, effect, rule)
    return pl.concat(parts)


def _with_repeats(
    caused: pl.DataFrame, lengths: Indices, consumable: NDArray[np.bool_], rng: np.random.Generator
) -> pl.DataFrame:
    """Add repeat purchases of consumables; each purchase is repeated with probability 0.4."""
    parts = [caused]
    latest = caused.filter(consumable[caused["item"]])
    while len(latest):
        again = latest.filter(rng.random(len(latest)) < 0.4)
        turns = again["turn"].to_numpy() + rng.uniform(1.5, 7, len(again))
        again = _purchases(again["user"].to_numpy(), again["item"].to_numpy(), turns)
        latest = again.filter(turns < lengths[again["user"]])
        parts.append(latest)
    return pl.concat(parts)
