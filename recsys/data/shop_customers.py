"""How the customers of the simulated shop buy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.shop_catalogue import SEASONS, Rule

YEARS = 3
"""The shop's log runs for so many years."""
MAX_DELAY = 3.0
"""Most own choices of the customer between the last cause and its effect; effects of other rules
and repeats fall between as well."""

COMPANY = 0.25
"""How often one cause of a conjunction brings another along."""

_YEAR = 365.25 * 24 * 3600
"""Seconds."""
_QUARTERS = 4 * YEARS
_OWN_CHOICES = (5, 100)
"""Fewest and most own choices of a customer; what follows from them makes half as many again."""


@dataclass(frozen=True, slots=True)
class Purchases:
    """Purchases in no order: N of them."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    turns: NDArray[np.float64]
    """When in the customer's life: own choices at 0, 1, 2, ..., what follows from them between."""
    rules: NDArray[np.int64]
    """Index of the rule that a purchase follows, -1 for none."""

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Purchases:
        return Purchases(self.users[rows], self.items[rows], self.turns[rows], self.rules[rows])


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each user's rows start, laid end to end."""
    return np.cumsum(lengths) - lengths


def _times(lengths: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Seconds since opening of each own choice and, after them, of the life's end [N + U].

    Customers join in the first two thirds of the shop's years; most stay to the end, others leave.
    """
    years = YEARS * _YEAR
    joined = rng.uniform(0, years * 2 / 3, len(lengths))
    stay = (years - joined) * np.minimum(rng.uniform(0.4, 2, len(lengths)), 1)
    users = np.repeat(np.arange(len(lengths)), lengths + 1)
    # Sorting user + moment sorts the moments of each user: moments are below 1.
    moments = np.sort(users + rng.random(len(users))) - users
    return joined[users] + stay[users] * moments


def _popularity(
    num_products: int, rules: list[tuple[tuple[int, ...], int]], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Share of own choices that each product has before season and taste [I].

    Half goes to the bestsellers: the causes, those of conjunctions ahead of the others, so that a
    customer who bought one of two causes and not the other is nothing special. The rest goes to all
    other products by a Zipf-Mandelbrot law.
    """
    best = np.zeros(num_products)
    for causes, _ in rules:
        best[list(causes)] = np.maximum(best[list(causes)], len(causes))
    best *= rng.uniform(0.7, 1.3, num_products)
    shares = (rng.permutation(num_products) + 20.0) ** -1.1
    shares[best > 0] = 0
    popularity: NDArray[np.float64] = (best / best.sum() + shares / shares.sum()) / 2
    return popularity


def _own_choices(
    lengths: NDArray[np.int64],
    times: NDArray[np.float64],
    popularity: NDArray[np.float64],
    stock: pl.DataFrame,
    rng: np.random.Generator,
) -> Purchases:
    """What customers buy of their own accord: first a category, by taste, then a product in it."""
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

    # A random walk, one step a quarter: after three years half of a taste is new.
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
    places = np.searchsorted(edges, drawn, side="right") % len(popularity)
    return Purchases(users, shelf[places], turns.astype(np.float64), np.full(len(users), -1))


def _seasonal_demand(stock: pl.DataFrame) -> NDArray[np.float64]:
    """How much better or worse than on average each product sells in each month [12, I]."""
    months = np.arange(12)[:, None]
    peaks = stock["season"].replace_strict(
        {season: 3.0 * index for index, season in enumerate(SEASONS)}, default=None
    )
    waves = np.cos((months - peaks.fill_null(0.0).to_numpy()) * (2 * np.pi / 12))
    return np.where(peaks.is_null().to_numpy(), 1.0, np.exp(1.5 * waves))


def _with_effects(
    own: Purchases,
    rules: list[tuple[tuple[int, ...], int]],
    num_customers: int,
    rng: np.random.Generator,
) -> Purchases:
    """The purchases with those added that follow a rule: once per customer and rule at most.

    Before, one cause of a conjunction now and then brings the others along.
    """
    first = {}
    for cause in {cause for causes, _ in rules for cause in causes}:
        bought = own.items == cause
        first[cause] = np.full(num_customers, np.inf)
        np.minimum.at(first[cause], own.users[bought], own.turns[bought])
    parts = [own]

    def follow(turns: NDArray[np.float64], chance: float, item: int, rule: int) -> None:
        """Some customers buy the item soon after their turn [U], which may be infinity: never."""
        delays = rng.uniform(0, MAX_DELAY, num_customers)
        users = np.flatnonzero((rng.random(num_customers) < chance) & np.isfinite(turns))
        then = (turns + delays)[users]
        parts.append(Purchases(users, np.full(len(users), item), then, np.full(len(users), rule)))
        if item in first:
            first[item][users] = np.minimum(first[item][users], then)

    alone = {cause: turns.copy() for cause, turns in first.items()}
    for causes, _ in rules:
        for cause, companion in permutations(causes, 2):
            follow(alone[cause], COMPANY, companion, -1)
    for index, (causes, effect) in enumerate(rules):
        complete = np.max([first[cause] for cause in causes], axis=0)
        follow(complete, PLANTED[index].probability, effect, index)
    return _concatenated(parts)


def _with_repeats(
    caused: Purchases,
    lengths: NDArray[np.int64],
    consumable: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Purchases:
    """The purchases with consumables bought again and again, by 2 in 5."""
    parts = [caused]
    latest = caused[consumable[caused.items]]
    while len(latest.users):
        again = latest[rng.random(len(latest.users)) < 0.4]
        turns = again.turns + rng.uniform(1.5, 7, len(again.turns))
        again = replace(again, turns=turns, rules=np.full(len(turns), -1))
        latest = again[turns < lengths[again.users]]
        parts.append(latest)
    return _concatenated(parts)


def _concatenated(parts: list[Purchases]) -> Purchases:
    return Purchases(
        np.concatenate([part.users for part in parts]),
        np.concatenate([part.items for part in parts]),
        np.concatenate([part.turns for part in parts]),
        np.concatenate([part.rules for part in parts]),
    )


