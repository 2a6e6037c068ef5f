"""What an automatic run decides before it trains: facts, split, settings, time and samples."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import recsys
from recsys.automatic.clock import Speed, measure, parse_time_limit
from recsys.automatic.rules import (
    Kind,
    LogFacts,
    Plan,
    Preset,
    choose_settings,
    choose_split,
    propose,
)
from recsys.config.data import DataConfig, GlobalTime, Split
from recsys.config.model import FeatureReaderConfig, NextItemConfig
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.inference.catalogue import Catalogue
from recsys.training.module import TrainingModule
from tests.conftest import chains
from tests.helpers.logs import log_of_columns

ITEMS = 40
USUAL = LogFacts(3_000, 800_000, 900, repeat_share=0.0, has_times=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(150, 12), out=tmp_path_factory.mktemp("data") / "chains")


def settings_of(facts: LogFacts) -> dict[str, str]:
    return {choice.setting: choice.value for choice in choose_settings(facts)}


def kinds_of(facts: LogFacts, preset: Preset = "fast", seed: int = 0) -> list[Kind]:
    return propose(facts, choose_settings(facts), DataConfig(), Plan("test", preset, seed))


# --- Facts ---------------------------------------------------------------------------------------


def test_facts_are_those_of_the_training_part(tmp_path: Path) -> None:
    times = [0, 0, 50, 51, 52, 5, 9, 10, 11]
    log = log_of_columns([*"aaaaabbbb"], [*"xxyzzxyzx"], times)  # the last two of each are held out
    facts = LogFacts.of(prepare(log, out=tmp_path / "data"))
    assert (facts.items, facts.interactions) == (3, 5)
    assert facts.repeat_share == pytest.approx(1 / 3)  # x after x, of three later interactions
    assert facts.interactions_per_item == pytest.approx(5 / 3)
    numbered = chains(20, 8).with_columns(timestamp=pl.Series(list(range(8)) * 20))
    assert not LogFacts.of(prepare(numbered, out=tmp_path / "numbers")).has_times
    assert LogFacts.of(prepare(chains(20, 8), out=tmp_path / "times")).has_times


def test_older_interactions_of_long_histories_are_trained_on(tmp_path: Path) -> None:
    facts = LogFacts.of(prepare(chains(5, 802), out=tmp_path / "long"))
    assert facts.newest_share == 0.25  # else a fourth of the log would be trained on
    assert settings_of(facts)["training.windows"] == "all"
    short = LogFacts.of(prepare(chains(5, 302), out=tmp_path / "short"))
    assert "training.windows" not in settings_of(short)


def test_held_out_purchases_change_no_choice(dataset: PreparedDataset, tmp_path: Path) -> None:
    """The same log with other validation and test targets has the same facts."""
    last = pl.int_range(pl.len()).over("user_id") >= 10
    changed = pl.when(last).then((pl.col("item_id") * 7 + 3) % ITEMS).otherwise("item_id")
    other = prepare(chains(150, 12).with_columns(item_id=changed), out=tmp_path / "other")
    assert LogFacts.of(other) == LogFacts.of(dataset)


# --- Kept columns --------------------------------------------------------------------------------


def kept(tmp_path: Path, **columns: list[Any]) -> LogFacts:
    """The facts of a log with further columns; four users have four interactions each."""
    log = chains(4, 4).with_columns(
        pl.Series(name, values, strict=False) for name, values in columns.items()
    )
    return LogFacts.of(prepare(log, out=tmp_path / "data", keep=list(columns)))


READ: dict[str, tuple[str, list[Any]]] = {
    "event": ("category", ["view", "buy"] * 8),
    "price": ("number", [0.5 * n for n in range(16)]),
    "listed": ("number", [f"{n}.50" for n in range(16)]),
    "tags": ("categories", [["a"], ["a", "b"]] * 8),
    "coupon": ("category", ["yes", None] * 8),
    "prix: 'à', {payé} \"€\" #1 ✓\x85": ("category", ["a", "b"] * 8),
}


def test_each_kept_column_is_read_by_its_values(tmp_path: Path) -> None:
    facts = kept(tmp_path, **{name: values for name, (_, values) in READ.items()})
    assert [feature.kind for feature in facts.features] == [kind for kind, _ in READ.values()]
    choice = choose_settings(facts)[-1]
    assert choice.setting == "model.interaction_features"
    assert choice.value.startswith("event as category, price as number, ")
    for kind in kinds_of(facts, "best"):
        model = kind.experiment.model
        assert isinstance(model, FeatureReaderConfig)
        assert [feature.column for feature in model.interaction_features] == list(READ)
    assert "model.interaction_features" not in settings_of(USUAL)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ([f"text {n}" for n in range(16)], "no two interactions share a value"),
        ([*"aaxx", *"bcxx", *"bcxx", *"dexx"], "5 different values in 8 training interactions"),
        (["EUR", "EUR "] * 8, "all interactions have the same value, 'EUR'"),
        ([None, " "] * 8, "no interaction has a value"),
        ([date(2026, 1, 1 + n % 2) for n in range(16)], "values that are no dates"),
        ([1.0, math.inf] * 8, "inf, which is not a number"),
    ],
)
def test_a_kept_column_that_tells_nothing_is_refused(
    tmp_path: Path, values: list[Any], fault: str
) -> None:
    with pytest.raises(InputError, match=fault):
        kept(tmp_path, column=values)


def test_models_read_the_item_table_where_items_share_values(tmp_path: Path) -> None:
    columns = {
        "name": [f"item {n}" for n in range(ITEMS)],
        "brand": ["a", "b", "c", None] * 10,
        "pairs": [f"pair {n // 2}" for n in range(ITEMS)],  # too few items a value
        "tags": [["x"], ["x", "y"]] * 20,
        "sales": [n % 5 for n in range(ITEMS)],  # may count what came later
        "rating": [*(f"{n % 5}.5" for n in range(ITEMS - 1)), "none yet"],
        "last_sale": [f"2026-01-0{1 + n % 5}" for n in range(ITEMS)],
        "since": [f"{13 + n % 5}.01.2026" for n in range(ITEMS)],
        "words": [["x"] * 51, *[["x", "y"]] * 39],
        "shop": ["one"] * ITEMS,
    }
    items = pl.DataFrame({"item_id": range(ITEMS), **columns})
    facts = LogFacts.of(prepare(chains(150, 12), out=tmp_path / "data", items=items))
    assert settings_of(facts)["model.item_features"] == "brand as category, tags as categories"
    for kind in kinds_of(facts, "best"):
        model = kind.experiment.model
        assert isinstance(model, FeatureReaderConfig)
        assert (model.item_features, model.interaction_features) == (facts.item_features, ())
    assert "model.item_features" not in settings_of(USUAL)


# --- The split -----------------------------------------------------------------------------------


def buyers(users: int) -> pl.DataFrame:
    """Return users with two purchases each, at any time; the first tells the second."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 12, users)
    items = np.stack([first, (first + 5) % 12], axis=1)
    times = np.sort(rng.integers(0, 10**7, (users, 2)), axis=1)
    return log_of_columns(np.repeat(np.arange(users), 2), items.ravel(), times.ravel())


BY_DATE = GlobalTime()


@pytest.mark.parametrize(
    ("lengths", "times", "split"),
    [
        ([2] * 2_000, None, BY_DATE),
        ([3] * 2_000, None, BY_DATE),  # with two held out there is no pair to learn from
        ([2] * 2_000 + [5_000], None, BY_DATE),  # a test account
        ([2] * 20_000 + [4] * 110, None, BY_DATE),  # more than a hundred, but few of them
        ([2] * 2_000 + [4] * 100, None, None),  # enough have four
        ([2] * 30 + [4] * 10, None, None),  # few, but the log is small
        ([2] * 2_000, np.tile([0, 1], 2_000), None),  # the number of the interaction
        ([2] * 2_000, np.arange(4_000), None),  # the number of the row
        ([1] * 2_000, None, None),
    ],
)
def test_users_with_few_interactions_are_split_by_date(
    lengths: list[int], times: NDArray[np.int64] | None, split: Split | None
) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if times is None:
        rng = np.random.default_rng(0)
        times = np.concatenate([np.sort(rng.integers(0, 10**7, n)) for n in lengths])
    assert choose_split(times, offsets) == split


def test_a_run_says_which_split_it_chose_unless_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recsys.automatic.run.measure", lambda *_: Speed(1.0, 1e-6, 1e-6))
    diverge = Mock(side_effect=InputError("diverged"))  # a baseline is the answer
    monkeypatch.setattr("recsys.automatic.racer.train", diverge)
    model = recsys.fit(buyers(1_500), time_limit=5, preset="fast")
    assert model.dataset is not None
    assert model.dataset.config.split == GlobalTime()
    page = model.report().read_text(encoding="utf-8")
    assert "data.split" in page
    assert "few users have 4 interactions" in page
    with pytest.raises(InputError, match="leaves no valid targets"):
        recsys.fit(buyers(1_500), split="leave_last_out", time_limit=10, preset="fast")


# --- The rule ------------------------------------------------------------------------------------


def test_sizes_follow_from_the_facts() -> None:
    large = settings_of(USUAL)
    small = settings_of(replace(USUAL, interactions=20_000, long_length=27))
    assert (large["model.embedding_dim"], small["model.embedding_dim"]) == ("128", "48")
    assert (large["model.max_sequence_length"], small["model.max_sequence_length"]) == ("200", "30")
    assert float(large["model.dropout"]) < float(small["model.dropout"])
    assert int(large["training.batch_tokens"]) > int(small["training.batch_tokens"])
    assert large["evaluation.seen"] == "filter"
    often = choose_settings(replace(USUAL, repeat_share=0.3))[0]
    assert (often.setting, often.value) == ("evaluation.seen", "allow")
    assert "30.0%" in often.reason


@pytest.mark.parametrize("sparse", [True, False])
def test_a_sparse_log_gets_a_filter_and_keeps_seen_items_in_the_loss(sparse: bool) -> None:
    facts = replace(USUAL, interactions=100_000) if sparse else USUAL
    raced = {kind.name: kind for kind in kinds_of(facts, "best")}
    models = {name: kind.experiment.model for name, kind in raced.items()}
    filtered = {n for n, m in models.items() if isinstance(m, NextItemConfig) and m.filter}
    assert filtered == ({"dot-product", "target-attention"} if sparse else set())
    assert all(("filter" in raced[name].description) == (name in filtered) for name in raced)
    excluded = {name: kind.experiment.training.exclude_seen for name, kind in raced.items()}
    assert excluded.pop("dot-product") is (False if sparse else None)
    assert {*excluded.values()} == {None}


@pytest.mark.parametrize(("preset", "number"), [("fast", 2), ("balanced", 4), ("best", 5)])
@pytest.mark.parametrize("has_times", [True, False])
def test_kinds_are_complete_experiments(preset: Preset, number: int, has_times: bool) -> None:
    kinds = kinds_of(replace(USUAL, has_times=has_times, items=200_000), preset, seed=3)
    assert len({kind.name for kind in kinds}) == number
    assert {kind.experiment.seed for kind in kinds} == {3}
    assert {kind.experiment.training.loss.kind for kind in kinds} == {"sampled_softmax"}


# --- Time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["", "0", "-5m", "500ms", "1h30m", "nan"])
def test_a_time_limit_that_is_none_is_refused(limit: str) -> None:
    with pytest.raises(InputError, match="time limit"):
        parse_time_limit(limit)


def test_samples_are_smaller_where_a_model_ranks_slowly(dataset: PreparedDataset) -> None:
    held_out = HeldOutParts.find(dataset, "unknown")

    def sizes(ranking: float, counting: float, limit: float) -> list[int]:
        parts = Speed(1e-6, ranking, counting).sample(held_out, limit, 0)
        return [len(part.histories) for part in (parts.valid, parts.test, parts.weighing)]

    assert sizes(1e-6, 1e-6, 600) == [150, 150, 150]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recsys.automatic.clock._LEAST_VALID", 50)
        patch.setattr("recsys.automatic.clock._LEAST_TEST", 60)
        assert sizes(0.05, 1e-4, 20)[:2] == [50, 60]  # fewer would leave the choice to chance
        valid, test, weighed = sizes(0.2, 1e-3, 1_000)
        assert (
            valid < test < weighed
        )  # weights of counts are chosen on more targets than are reported
        words = held_out, 20, 0
        first, again = (Speed(1e-6, 0.05, 1e-4).sample(*words).test.targets for _ in range(2))
        assert first.tolist() == again.tolist()


def test_the_speed_is_that_of_steps_and_rankings(
    dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = kinds_of(LogFacts.of(dataset))[0]
    words = kind.cost, dataset, Catalogue(dataset.num_items), dataset.holdout("valid")
    usual = measure(kind.experiment, *words)
    assert min(usual.token, usual.ranking, usual.counting) > 0
    step = TrainingModule.training_step

    def slow(*arguments: Any) -> Any:
        time.sleep(0.3)
        return step(*arguments)

    monkeypatch.setattr(TrainingModule, "training_step", slow)
    tokens = kind.cost * kind.experiment.training.batch_tokens
    assert measure(kind.experiment, *words).token * tokens > 0.25
    training = kind.experiment.training.model_copy(update={"learning_rate": 1e30})
    spoilt = kind.experiment.model_copy(update={"training": training})
    unknown = measure(spoilt, *words)
    assert (unknown.token, unknown.ranking) == (0, 0)
