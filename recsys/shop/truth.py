"""Did a model find what is planted in the shop: rules, chains, the true causes of purchases?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product

import numpy as np
import polars as pl

from recsys.errors import InputError
from recsys.shop.products import Rule
from recsys.shop.simulation import Shop

TopK = Callable[[Sequence[list[str]], int], Sequence[Sequence[str]]]
"""Item ids of B histories, oldest first, and k -> k item ids for each, best first."""
Explain = Callable[[list[str], str], Sequence[float]]
"""Item ids of a history, and the item to explain -> a share for each entry of the history."""

RECOVERED_RATE = 0.5
"""A rule is recovered when its effect is in the top k of at least this share of its probes..."""
RECOVERED_LIFT = 2.0
"""...and at least so many times as often as when a cause is missing."""


def rule_recovery(
    shop: Shop, top_k: TopK, *, k: int = 10, num_probes: int = 200, seed: int = 0
) -> pl.DataFrame:
    """Which planted rules a model has found, each judged on histories made for it.

    A probe is the beginning of a customer's history, without the products of the rule, and after it
    the causes in random order, each followed by a neutral purchase (of a product that is in no
    rule). Its controls leave one cause out, with a neutral purchase in its place: of a conjunction
    each cause alone, of a single cause none. ::

        probe      Kettle, Tent, Olive oil | Snow boots, Bookcase, Winter gloves, Hay
        controls   Kettle, Tent, Olive oil | Snow boots, Bookcase, Easel, Hay
                   Kettle, Tent, Olive oil | Desk lamp, Bookcase, Winter gloves, Hay

    A model fitted to a `shuffled` shop is judged in the same way and should recover nothing.

    Returns:
        One row per rule: rule (name), with_causes (share of the probes with the effect in the top
        k), without_cause (the same of the controls, for the cause whose absence matters least),
        recovered.
    """
    rng = np.random.default_rng(seed)
    histories = list(_histories(shop).values())
    neutral = _neutral(shop)
    rows = []
    for rule in shop.rules:
        groups = _probes(rule, histories, neutral, num_probes, rng)
        lists = top_k([history for group in groups for history in group], k)
        hits = np.array([rule.effect in items[:k] for items in lists]).reshape(len(groups), -1)
        given, *missing = hits.mean(axis=1)
        without = max(missing)
        recovered = given >= RECOVERED_RATE and given >= RECOVERED_LIFT * without
        rows.append((rule.name, float(given), float(without), bool(recovered)))
    return pl.DataFrame(
        rows, schema=["rule", "with_causes", "without_cause", "recovered"], orient="row"
    )


def chain_continuation(
    shop: Shop, next_items: TopK, *, n: int = 5, num_probes: int = 200, seed: int = 0
) -> pl.DataFrame:
    """How often the planted chains are continued in order, each judged on histories made for it.

    A chain is a rule with one cause whose effect is the one cause of another rule: phone, case,
    charger. Its probes are those of its first rule (see `rule_recovery`): they hold the phone, and
    neither the case nor the charger. It is continued if the next n items hold the case and, after
    it, the charger; in the shop itself that comes to the product of the two rules' probabilities,
    less what falls behind the n-th purchase.

    Args:
        shop: whose rules are looked for.
        next_items: item ids of B histories, oldest first, and n -> the next n of each, in order.
        n: how many.
        num_probes: histories per chain.
        seed: of the histories.

    Returns:
        One row per chain: chain ("Phone, Phone case, Fast charger"), planted (the product of the
        probabilities), continued (share of the probes), without_start (the same without its first
        item).
    """
    rng = np.random.default_rng(seed)
    names = dict(shop.products.select("item_id", "name").iter_rows())
    histories = list(_histories(shop).values())
    neutral = _neutral(shop)
    rows = []
    for first, second in product(shop.rules, repeat=2):
        if not len(first.causes) == len(second.causes) == 1 or second.causes[0] != first.effect:
            continue
        chain = [*first.causes, first.effect, second.effect]
        without = [[item for item in history if item not in chain] for history in histories]
        given, control = _probes(first, without, neutral, num_probes, rng)
        lists = next_items([*given, *control], n)
        found = np.array([_in_order(items[:n], chain[1:]) for items in lists]).reshape(2, -1)
        planted = first.probability * second.probability
        label = ", ".join(names[item] for item in chain)
        rows.append((label, planted, *found.mean(axis=1).tolist()))
    return pl.DataFrame(
        rows, schema=["chain", "planted", "continued", "without_start"], orient="row"
    )


def explanation_accuracy(
    shop: Shop, explain: Explain, *, max_cases: int = 500, seed: int = 0
) -> pl.DataFrame:
    """Whether planted purchases are explained by their true causes.

    Each case is a planted purchase, drawn at random, explained from the history before it.

    Returns:
        One row per case: user_id, item_id, rule, cause_first (whether a true cause has a larger
        share than all that is none: equal shares do not count), chance (how many of the entries are
        causes). The accuracy is the mean of cause_first, and the mean of chance what to hold it to.

    Raises:
        InputError: the shop's log is not the one that the rules were planted in.
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
        shares = np.asarray(explain(history, item), dtype=np.float64)
        if shares.shape != (len(history),):
            raise ValueError(f"explain: one share per entry, {len(history)}, not {shares.shape}")
        true = np.isin(history, causes)
        first = shares[true].max() > shares[~true].max(initial=-np.inf)
        rows.append((user, item, rule, bool(first), float(true.mean())))
    return pl.DataFrame(
        rows, schema=["user_id", "item_id", "rule", "cause_first", "chance"], orient="row"
    )


def _probes(
    rule: Rule,
    histories: list[list[str]],
    neutral: pl.Series,
    num_probes: int,
    rng: np.random.Generator,
) -> list[list[list[str]]]:
    """Probe histories, and as many controls for each cause left out."""
    size = len(rule.causes)
    own = {*rule.causes, rule.effect}
    kept = [set(rule.causes), *(set(some) for some in combinations(rule.causes, size - 1))]
    groups: list[list[list[str]]] = [[] for _ in kept]
    for customer in rng.integers(len(histories), size=num_probes):
        before = [item for item in histories[customer] if item not in own]
        before = before[: rng.integers(3, 20)]
        others = neutral.gather(rng.integers(len(neutral), size=2 * size)).to_list()
        order = rng.permutation(rule.causes).tolist()
        for group, present in zip(groups, kept, strict=True):
            purchases = list(before)
            for place, cause in enumerate(order):
                stand_in, after = others[2 * place : 2 * place + 2]
                purchases += [cause if cause in present else stand_in, after]
            group.append(purchases)
    return groups


def _neutral(shop: Shop) -> pl.Series:
    """The purchases of products that are in no rule."""
    in_rules = {item for rule in shop.rules for item in (*rule.causes, rule.effect)}
    items = shop.interactions["item_id"]
    return items.filter(~items.is_in(in_rules))


def _in_order(items: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the wanted items are there, each after the one before."""
    rest = iter(items)
    return all(item in rest for item in wanted)


def _histories(shop: Shop) -> dict[str, list[str]]:
    """Item ids of each user, oldest first."""
    log = shop.interactions.group_by("user_id", maintain_order=True)
    return dict(log.agg("item_id").iter_rows())
