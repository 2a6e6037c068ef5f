"""The ground-truth tests of the shop distinguish knowledge of the rules from guessing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from recsys.errors import InputError
from recsys.shop.simulation import Shop, make_shop, shuffled
from recsys.shop.truth import explanation_accuracy, rule_recovery


@pytest.fixture(scope="module")
def small() -> Shop:
    return make_shop(seed=1, num_customers=1_500, num_products=400)


class Oracle:
    """A model that knows the rules: it recommends effects whose causes were recently completed."""

    def __init__(self, shop: Shop) -> None:
        self.rules = shop.rules
        self.causes = {rule.effect: rule.causes for rule in shop.rules}
        self.popular = [item for item, _ in Counter(shop.interactions["item_id"]).most_common(50)]

    def top_k(self, histories: Sequence[list[str]], k: int) -> list[list[str]]:
        return [[*self._due(history), *self.popular][:k] for history in histories]

    def explain(self, history: list[str], item: str) -> list[float]:
        return [float(bought in self.causes[item]) for bought in history]

    def _due(self, history: list[str]) -> Iterator[str]:
        for rule in self.rules:
            if set(rule.causes) <= set(history):
                complete = max(history.index(cause) for cause in rule.causes)
                if complete >= len(history) - 6 and rule.effect not in history[complete:]:
                    yield rule.effect


def test_an_oracle_is_credited(small: Shop) -> None:
    oracle = Oracle(small)
    recovery = rule_recovery(small, oracle.top_k, num_probes=60)
    assert recovery["rule"].to_list() == [rule.name for rule in small.rules]
    assert recovery["recovered"].all()
    assert recovery["with_causes"].to_numpy().min() > 0.95
    assert recovery["without_cause"].to_numpy().max() == 0
    cases = explanation_accuracy(small, oracle.explain, max_cases=200)
    assert len(cases) == 200
    assert cases["cause_first"].all()
    assert 0.02 < cases["chance"].to_numpy().mean() < 0.3


def test_popularity_and_chance_are_not_credited(small: Shop) -> None:
    oracle = Oracle(small)
    rng = np.random.default_rng(0)
    items = small.products["item_id"].to_numpy()
    recovery = rule_recovery(small, lambda rows, k: [oracle.popular[:k]] * len(rows), num_probes=20)
    assert not recovery["recovered"].any()
    recovery = rule_recovery(
        small, lambda rows, k: rng.choice(items, (len(rows), k)).tolist(), num_probes=60
    )
    assert not recovery["recovered"].any()
    cases = explanation_accuracy(small, lambda history, _: rng.random(len(history)).tolist())
    accuracy, chance = cases["cause_first"].to_numpy().mean(), cases["chance"].to_numpy().mean()
    assert abs(accuracy - chance) < 0.06
    with pytest.raises(ValueError, match="must return .* shares, not"):
        explanation_accuracy(small, lambda history, _: [0.1] * (len(history) + 1))


def test_a_rule_that_needs_only_one_cause_is_not_recovered(small: Shop) -> None:
    def any_cause(rows: Sequence[list[str]], k: int) -> list[list[str]]:
        return [
            [rule.effect for rule in small.rules if set(rule.causes) & set(row)] for row in rows
        ]

    recovery = rule_recovery(small, any_cause, k=len(small.rules), num_probes=20)
    assert (recovery["with_causes"] == 1).all()
    assert recovery["recovered"].to_list() == [len(rule.causes) == 1 for rule in small.rules]


def test_a_shuffled_shop_explains_nothing(small: Shop) -> None:
    oracle = Oracle(small)
    again = [rule_recovery(small, oracle.top_k, num_probes=5, seed=7) for _ in range(2)]
    assert_frame_equal(*again)
    with pytest.raises(InputError, match=r"was planted here.*judge models of a shuffled shop"):
        explanation_accuracy(shuffled(small), oracle.explain)
