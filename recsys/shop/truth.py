"""Ground-truth tests: which planted rules, chains and causes of purchases a model recovers."""

from collections.abc import Callable, Sequence
from itertools import combinations, product

import numpy as np
import polars as pl

from recsys.errors import InputError
from recsys.shop.products import Rule
from recsys.shop.simulation import Shop

TopK = Callable[[Sequence[list[str]], int], Sequence[Sequence[str]]]
"""A function from the item ids of B histories, oldest first, and k, to each one's k best items."""
Explain = Callable[[list[str], str], Sequence[float]]
"""A function from the item ids of a history, and an item, to the share of each history entry."""

RECOVERED_RATE, RECOVERED_LIFT = 0.5, 2.0
"""A rule is recovered if its effect is in the top k of at least this share of its probes, and at
least this many times as often as when a cause is missing."""


def rule_recovery(
    shop: Shop, top_k: TopK, *, k: int = 10, num_probes: int = 200, seed: int = 0
) -> pl.DataFrame:
    """Test which planted rules a model has learned, on histories made for each rule.

    A probe is the beginning of a customer's history without the products of the rule, followed by
    the causes in random order, each followed by a neutral purchase (of a product that is in no
    rule). Each control replaces one cause by a neutral purchase.

    Returns:
        One row per rule: rule (name), with_causes (share of the probes with the effect in the top
        k), without_cause (the same share of the controls without the cause that matters least),
        recovered.
    """
    rng, neutral = np.random.default_rng(seed), _neutral(shop)
    histories, rows = list(_histories(shop).values()), []
    for rule in shop.rules:
        groups = _probes(rule, histories, neutral, num_probes, rng)
        with_causes, *missing = _rates(groups, [rule.effect], top_k, k)
        without = max(missing)
        recovered = with_causes >= RECOVERED_RATE and with_causes >= RECOVERED_LIFT * without
        rows.append((rule.name, with_causes, without, recovered))
    columns = ["rule", "with_causes", "without_cause", "recovered"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def chain_continuation(
    shop: Shop, next_items: TopK, *, n: int = 5, num_probes: int = 200, seed: int = 0
) -> pl.DataFrame:
    """Test how often a model continues the planted chains in order, on histories made for each.

    A chain is a rule with a single cause whose effect is the single cause of another rule: phone,
    case, charger. Its probes are those of its first rule (see `rule_recovery`), without case and
    charger. It is continued if the next n items contain the case and, later, the charger.

    Returns:
        One row per chain: chain ("Phone, Phone case, Fast charger"), planted (the product of the
        probabilities), continued (share of the probes), without_start (the same share of histories
        without the chain's first item).
    """
    rng, neutral = np.random.default_rng(seed), _neutral(shop)
    names = dict(shop.products.select("item_id", "name").iter_rows())
    histories, rows = list(_histories(shop).values()), []
    for first, second in product(shop.rules, repeat=2):
        if not len(first.causes) == len(second.causes) == 1 or second.causes[0] != first.effect:
            continue
        chain = [*first.causes, first.effect, second.effect]
        without = [[item for item in history if item not in chain] for history in histories]
        groups = _probes(first, without, neutral, num_probes, rng)
        planted = first.probability * second.probability
        label = ", ".join(names[item] for item in chain)
        rows.append((label, planted, *_rates(groups, chain[1:], next_items, n)))
    columns = ["chain", "planted", "continued", "without_start"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def explanation_accuracy(
    shop: Shop, explain: Explain, *, max_cases: int = 500, seed: int = 0
) -> pl.DataFrame:
    """Test whether a model explains planted purchases by their true causes.

    Each case is a randomly drawn planted purchase, explained from the history before it.

    Returns:
        One row per case: user_id, item_id, rule, cause_first (whether a true cause has a larger
        share than all other entries; ties do not count), chance (the share of entries that are
        causes, the baseline of the mean of cause_first).

    Raises:
        InputError: the shop's log is not the one in which the rules were planted.
    """
    histories = _histories(shop)
    chosen = np.random.default_rng(seed).permutation(len(shop.truth))[:max_cases]
    rows = []
    for user, item, _, position, rule, causes in shop.truth[np.sort(chosen)].iter_rows():
        history = histories[user][:position]
        if histories[user][position] != item or not set(causes) <= set(history):
            raise InputError(
                f"user {user}, purchase {position}: {item} was planted here, but the log has "
                f"{histories[user][position]}; judge models of a shuffled shop on the true one"
            )
        shares, true = np.asarray(explain(history, item), np.float64), np.isin(history, causes)
        if shares.shape != (len(history),):
            raise ValueError(f"explain: must return {len(history)} shares, not {shares.shape}")
        first = shares[true].max() > shares[~true].max(initial=-np.inf)
        rows.append((user, item, rule, bool(first), float(true.mean())))
    columns = ["user_id", "item_id", "rule", "cause_first", "chance"]
    return pl.DataFrame(rows, schema=columns, orient="row")


def _probes(
    rule: Rule, histories: list[list[str]], neutral: pl.Series, count: int, rng: np.random.Generator
) -> list[list[list[str]]]:
    """Return probe histories, and as many controls for each cause that is replaced."""
    size, own = len(rule.causes), {*rule.causes, rule.effect}
    kept = [set(rule.causes), *(set(causes) for causes in combinations(rule.causes, size - 1))]
    groups: list[list[list[str]]] = [[] for _ in kept]
    for customer in rng.integers(len(histories), size=count):
        before = [item for item in histories[customer] if item not in own]
        before = before[: rng.integers(3, 20)]
        others = neutral.gather(rng.integers(len(neutral), size=2 * size)).to_list()
        order = rng.permutation(rule.causes).tolist()
        for group, present in zip(groups, kept, strict=True):
            purchases = list(before)
            for number, cause in enumerate(order):
                replacement, after = others[2 * number : 2 * number + 2]
                purchases += [cause if cause in present else replacement, after]
            group.append(purchases)
    return groups


def _neutral(shop: Shop) -> pl.Series:
    """Return the purchases of products that are in no rule."""
    in_rules = {item for rule in shop.rules for item in (*rule.causes, rule.effect)}
    items = shop.interactions["item_id"]
    return items.filter(~items.is_in(in_rules))


def _rates(groups: list[list[list[str]]], wanted: list[str], top_k: TopK, k: int) -> list[float]:
    """Return how often the k items after the histories of each group have the wanted, in order."""
    lists = top_k([history for group in groups for history in group], k)
    rests = [iter(items[:k]) for items in lists]
    found = [all(item in rest for item in wanted) for rest in rests]
    return np.reshape(found, (len(groups), -1)).mean(axis=1).tolist()


def _histories(shop: Shop) -> dict[str, list[str]]:
    log = shop.interactions.group_by("user_id", maintain_order=True)
    return dict(log.agg("item_id").iter_rows())
