"""The encoder-decoder continues the chains planted in the shop, and none in a shuffled shop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import recsys
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import Shop, make_shop, shuffled
from recsys.shop.truth import TopK, chain_continuation

CONFIG = Path(__file__).parents[1] / "configs" / "shop-next-purchases.yaml"
SMALL = [
    "model.num_heads=1",
    "model.feed_forward_dim=64",
    "model.max_sequence_length=8",
    "model.max_generated=5",
    "training.batch_tokens=1000",
]


@dataclass(frozen=True)
class Continued:
    """The share of probe histories after which a chain is generated in order; means of 8 chains."""

    with_start: float
    without_start: float


def generated(model: Recommender) -> TopK:
    def next_items(histories: Sequence[list[str]], n: int) -> list[list[str]]:
        lists: list[list[str]] = (
            model.generate(histories, n=n)
            .group_by("user_id", maintain_order=True)
            .agg("item_id")["item_id"]
            .to_list()
        )
        assert len(lists) == len(histories), "every history has a list"
        return lists

    return next_items


def continued(sold: Shop, truth: Shop, folder: Path, n: int, *overrides: str) -> Continued:
    """Fit a model to the log of one shop and test it with the chains of another."""
    split = "data.split={kind: leave_last_out, targets: 5}"
    experiment = recsys.load_experiment(
        CONFIG, [*overrides, split, f"tracking.uri=sqlite:///{folder}/mlflow.db"]
    )
    data = recsys.prepare(sold.interactions, experiment.data, folder / "data")
    run = recsys.train(experiment, data, out=folder / "run")
    chains = chain_continuation(truth, generated(recsys.load(run.bundle)), n=n, num_probes=100)
    print(chains)
    assert chains.height == 8
    return Continued(*chains.select("continued", "without_start").mean().row(0))


@pytest.mark.slow
def test_chains_are_continued_in_the_shop_and_not_in_the_shuffled_one(tmp_path: Path) -> None:
    shop = make_shop(seed=0, num_customers=2_000, num_products=220)
    found = continued(shop, shop, tmp_path / "shop", 5, *SMALL, "training.max_epochs=6")
    assert found.with_start > 0.25
    assert found.without_start < 0.05
    noise = shuffled(shop)
    destroyed = continued(noise, shop, tmp_path / "noise", 5, *SMALL, "training.max_epochs=2")
    assert destroyed.with_start < 0.02


@pytest.mark.benchmark
def test_chains_at_full_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the rates of the shipped config for 5 and 10 purchases, also on the shuffled shop."""
    shop = make_shop(seed=0)
    for name, sold in (("shop", shop), ("shuffled", shuffled(shop))):
        for n in (5, 10):
            found = continued(sold, shop, tmp_path / f"{name}{n}", n)
            with capsys.disabled():
                print(f"\n{name}, {n} purchases: {found}", end="")
