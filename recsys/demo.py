"""The demo: train on the simulated shop and show the results on the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from recsys.config.experiment import Experiment
from recsys.config.model import DotProduct, NextItemConfig, TargetAttention
from recsys.data.prepared import prepare
from recsys.errors import InputError
from recsys.experiments.baselines import baselines_of, fit_baselines
from recsys.experiments.fit import fit
from recsys.reports.comparison import compare, comparison_table
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import Shop, make_shop
from recsys.shop.truth import Explain, TopK, explanation_accuracy, rule_recovery
from recsys.tracking.store import mlflow_link


def demo(experiment: Experiment, console: Console) -> None:
    """Build the shop, train both heads, compare, recommend, explain and check the planted rules.

    Raises:
        InputError: the experiment's model has no target attention.
    """
    model = experiment.model
    if not isinstance(model, NextItemConfig) or not isinstance(model.head, TargetAttention):
        raise InputError(f"the demo needs a model with target attention, not {model.family}")
    shop = make_shop()
    log, names = shop.interactions, dict(shop.products.select("item_id", "name").iter_rows())
    console.rule("1. The shop")
    console.print(
        f"{log['user_id'].n_unique():,} customers, {shop.products.height:,} products, "
        f"{log.height:,} purchases. {len(shop.rules)} planted rules caused "
        f"{shop.truth.height / log.height:.0%} of the purchases. Some of them:"
    )
    for rule in shop.rules[:4]:
        causes = " and ".join(names[cause] for cause in rule.causes)
        console.print(f"  {causes} → {names[rule.effect]}")
    dataset = prepare("shop", experiment.data, Path("data") / "shop")

    baselines = baselines_of(experiment, dataset)
    console.rule(f"2. Training ({len(baselines) + 2} models, progress on standard error)")
    dot_product_model = model.model_copy(update={"head": DotProduct()})
    changes = {"name": f"{experiment.name}-dot", "model": dot_product_model}
    dot_product = fit(experiment.model_copy(update=changes), dataset)
    attention = fit(experiment, dataset)
    runs = fit_baselines(baselines, experiment, dataset, parent=attention.run_id)

    console.rule("3. Exact ranks over the whole catalogue")
    order = [dot_product.run_id, attention.run_id, *runs]
    console.print(comparison_table(compare(order, experiment.tracking)))

    console.rule("4. Three customers")
    recommender = Recommender.load(attention.bundle, dataset)
    for customer in log["user_id"].unique(maintain_order=True).head(3):
        history = log.filter(pl.col("user_id") == customer)["item_id"].to_list()
        console.print(_recommended(customer, history, names, recommender), "")

    console.rule("5. Were the planted rules found?")
    _show_rules(shop, recommender, Recommender.load(dot_product.bundle, dataset), console)

    console.rule("6. Look closer")
    console.print(
        f"All runs, metrics and pictures:\n{mlflow_link(experiment.tracking)}\nMore for a customer:"
        f"\n  recsys recommend {attention.bundle} --user C00001 --data {dataset.path} -k 5",
        soft_wrap=True,
    )


def _recommended(
    customer: str, history: Sequence[str], names: Mapping[str, str], recommender: Recommender
) -> Table:
    latest = ", ".join(names[item] for item in history[-6:])
    table = Table(title=f"{customer}: … {latest}", title_justify="left", box=None)
    for head in ("", "recommended", "because of"):
        table.add_column(head)
    best = recommender.recommend({customer: history}, k=5)
    for item, rank in best.select("item_id", "rank").iter_rows():
        reasons = recommender.explain(history, item).head(2).select("name", "share")
        because = ", ".join(f"{name} ({share:+.0%})" for name, share in reasons.iter_rows())
        table.add_row(str(rank), names[item], because)
    return table


def _show_rules(
    shop: Shop, attention: Recommender, dot_product: Recommender, console: Console
) -> None:
    """Show the rules that both models recovered, and how often a true cause ranks first."""
    console.print(
        "A rule is recovered if its effect is in the top 10 of at least half of the probe "
        "histories that hold its causes, and at least twice as often as when a cause is missing."
    )
    for name, model in {"target attention": attention, "dot product": dot_product}.items():
        rules = rule_recovery(shop, best_items(model))
        missed = ", ".join(rules.filter(~pl.col("recovered"))["rule"])
        line = f"{name}: {rules['recovered'].sum()} of {rules.height} rules"
        console.print(line + (f"; missed: {missed}" if missed else ""))
    cases = explanation_accuracy(shop, shares(attention), max_cases=300)
    first, chance = cases.select("cause_first", "chance").mean().row(0)
    console.print(
        f"Of {cases.height} planted purchases, {first:.0%} are explained by a true cause first "
        f"(by chance: {chance:.0%})."
    )


def best_items(model: Recommender) -> TopK:
    """Wrap a model for `rule_recovery`: from histories to lists of item ids."""

    def top_k(histories: Sequence[list[str]], k: int) -> list[list[str]]:
        best = model.recommend(histories, k=k).group_by("user_id", maintain_order=True)
        return best.agg("item_id")["item_id"].to_list()

    return top_k


def shares(model: Recommender) -> Explain:
    """Wrap a model for `explanation_accuracy`: the share of each purchase in an item's score."""

    def explain(history: list[str], item: str) -> list[float]:
        parts = model.explain(history, item).select("position", "share")
        known = dict(parts.iter_rows())  # purchases outside the window explain nothing
        return [known.get(position, -1.0) for position in range(len(history))]

    return explain
