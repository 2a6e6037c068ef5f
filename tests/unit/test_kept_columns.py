"""Kept columns of a log in an automatic run: how they are read, and what they are worth."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Plan, choose_shared, propose
from recsys.automatic.facts import LogFacts
from recsys.automatic.kept_columns import choose_features
from recsys.automatic.run import run_automatically
from recsys.config import FeatureReaderConfig, TrackingConfig, load_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.serving.recommender import Recommender
from tests.unit.conftest import chains

STEPS = {"view": 1, "wish": 7, "buy": 13, "give": 19}
ITEMS = 40


def kept(tmp_path: Path, **columns: list[Any]) -> LogFacts:
    """The facts of a log with further columns; four users have four interactions each."""
    log = chains(4, 4).with_columns(
        pl.Series(name, values, strict=False) for name, values in columns.items()
    )
    return LogFacts.of(prepare(log, out=tmp_path / "data", keep=list(columns)))


def test_each_column_is_read_by_its_values(tmp_path: Path) -> None:
    facts = kept(
        tmp_path,
        event=["view", "buy"] * 8,
        gift=[True, False] * 8,
        price=[0.5 * n for n in range(16)],
        listed=[f"{n}.50" for n in range(16)],
        rating=[1, 5] * 8,
        tags=[["a"], ["a", "b"]] * 8,
        coupon=["yes", None] * 8,
        comment=[f"text {n}" for n in range(16)],
        currency=["EUR", "EUR "] * 8,
        same=[["a", "b"]] * 16,
        nothing=[None, " "] * 8,
        code=["c1", "", "", ""] * 2 + ["c2", "", "", ""] * 2,
        day=[date(2026, 1, 1 + n % 2) for n in range(16)],
        ratio=[1.0, math.inf] * 8,
    )
    assert {one.name: one.feature and one.feature.kind for one in facts.kept} == {
        "event": "category",
        "gift": "category",
        "price": "number",
        "listed": "number",
        "rating": "number",
        "tags": "categories",
        "coupon": "category",
        "comment": None,
        "currency": None,
        "same": None,
        "nothing": None,
        "code": "category",
        "day": None,
        "ratio": None,
    }
    choice = choose_features(facts.kept)
    assert choice.setting == "model.interaction_features"
    assert choice.value.startswith("event, gift, price as number, ")
    assert "currency is left out: all interactions have the same value, 'EUR'" in choice.reason
    assert "comment is left out: no two interactions share a value" in choice.reason
    assert "nothing is left out: no interaction has a value" in choice.reason
    assert "day is left out: dates are not read as features" in choice.reason
    assert "inf, which is not a number" in choice.reason
    data = prepare(chains(4, 4), out=tmp_path / "other").config
    for candidate in propose(facts, choose_shared(facts), data, Plan("test", "best")):
        model = candidate.experiment.model
        assert isinstance(model, FeatureReaderConfig)
        columns = [feature.column for feature in model.interaction_features]
        assert columns == ["event", "gift", "price", "listed", "rating", "tags", "coupon", "code"]


def test_text_that_few_interactions_share_is_left_out(tmp_path: Path) -> None:
    facts = kept(tmp_path, comment=[*"aaxx", *"bcxx", *"bcxx", *"dexx"])
    choice = choose_features(facts.kept)
    assert choice.value == "none"
    assert choice.reason == (
        "comment is left out: 5 different values are too many for 8 training interactions"
    )


def test_a_column_of_any_name_is_read(tmp_path: Path) -> None:
    name = "prix: 'à', {payé} \"€\" #1 ✓\N{GRINNING FACE}\x85\x80"
    facts = kept(tmp_path, **{name: ["a", "b"] * 8})
    data = prepare(chains(4, 4), out=tmp_path / "other").config
    model = propose(facts, choose_shared(facts), data, Plan("test"))[0].experiment.model
    assert isinstance(model, FeatureReaderConfig)
    assert [feature.column for feature in model.interaction_features] == [name]


def test_nothing_is_chosen_where_nothing_is_kept(tiny_dataset: PreparedDataset) -> None:
    facts = LogFacts.of(tiny_dataset)
    assert facts.kept == ()
    assert not facts.features


@pytest.mark.slow
def test_an_event_that_tells_the_next_item_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event of an interaction says by how much the next item is further on."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    events = rng.choice(list(STEPS), size=(500, 10))
    moves = np.vectorize(STEPS.get)(events)
    starts = rng.integers(ITEMS, size=(500, 1))
    items = (starts + np.cumsum(moves, axis=1) - moves) % ITEMS
    log = pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(500), 10),
            "item_id": items.ravel(),
            "timestamp": np.tile(np.arange(10), 500),
            "event": events.ravel(),
        }
    )
    dataset = prepare(log, out=tmp_path / "events", keep=["event"])
    tracking = TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db")
    run = run_automatically(dataset, Plan("events", "fast", 0, tracking), Budget(25))
    # Without the event, the best order of the four next items has .64 (1, .63, .5 and .43).
    assert run.run.test["ndcg_at_10"].mean > 0.8
    assert run.averaging is None
    settings = load_experiment(tmp_path / "runs" / "events" / "experiment.yaml")
    assert isinstance(settings.model, FeatureReaderConfig)
    assert [one.column for one in settings.model.interaction_features] == ["event"]
    model = Recommender.load(tmp_path / "runs" / "events" / "bundle", dataset)
    history = pl.DataFrame({"user_id": ["x"], "item_id": [5], "timestamp": [1], "event": ["buy"]})
    assert model.recommend(history, k=1)["item_id"].to_list() == [18]
