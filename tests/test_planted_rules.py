"""Target attention recovers the rules planted in the shop and explains purchases by them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import recsys
from recsys.demo import best_items, shares
from recsys.shop.simulation import Shop, make_shop, shuffled
from recsys.shop.truth import explanation_accuracy, rule_recovery

CONFIG = Path(__file__).parents[1] / "configs" / "shop.yaml"


@dataclass(frozen=True)
class Findings:
    rules: float
    """The share of planted rules that were recovered."""
    explained: float
    """The share of planted purchases whose true cause has the largest share of the score."""


def findings(sold: Shop, truth: Shop, folder: Path, *overrides: str) -> Findings:
    """Fit a model to the log of one shop and test it with the truth of another."""
    data = recsys.prepare(sold.interactions, out=folder / "data", items=sold.products)
    tracking = f"tracking.uri=sqlite:///{folder}/mlflow.db"
    run = recsys.train(CONFIG, data, overrides=[*overrides, tracking], out=folder / "run")
    model = recsys.load(run.bundle)
    rules = rule_recovery(truth, best_items(model), num_probes=100)
    cases = explanation_accuracy(truth, shares(model), max_cases=200)
    return Findings(
        rules.select("recovered").mean().item(), cases.select("cause_first").mean().item()
    )


def explained_by_age(truth: Shop) -> float:
    """Return the accuracy of always naming the purchase of the best age as the cause."""

    def accuracy(age: int) -> float:
        def name_purchase(history: list[str], _: str) -> list[float]:
            return [
                float(position == max(0, len(history) - age)) for position in range(len(history))
            ]

        cases = explanation_accuracy(truth, name_purchase, max_cases=200)
        return cases.select("cause_first").mean().item()

    return max(accuracy(age) for age in range(1, 7))


@pytest.mark.slow
def test_planted_rules_are_found_in_the_shop_and_not_in_the_shuffled_one(tmp_path: Path) -> None:
    """Causes are recent, and so a model of noise names some: hardly more than a fixed age does."""
    shop = make_shop(seed=0, num_customers=3_000)
    small = "training.batch_tokens=2000"
    found = findings(shop, shop, tmp_path / "shop", small, "training.max_epochs=10")
    assert found.rules > 0.5
    assert found.explained > 0.9
    noise = shuffled(shop)
    destroyed = findings(noise, shop, tmp_path / "shuffled", small, "training.max_epochs=4")
    assert destroyed.rules == 0
    assert destroyed.explained < explained_by_age(shop) + 0.15 < found.explained - 0.3


@pytest.mark.benchmark
def test_planted_rules_at_full_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the rates of the demo's shop, and of the shuffled shop."""
    shop = make_shop(seed=0)
    for name, sold in (("shop", shop), ("shuffled", shuffled(shop))):
        found = findings(sold, shop, tmp_path / name)
        with capsys.disabled():
            print(f"\n{name}: {found}", end="")
    with capsys.disabled():
        print(f"\nalways naming the purchase of the best age explains {explained_by_age(shop):.3f}")
