"""Ranking among candidates: sampled, given, and always named in the protocol."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.baselines.counts import Popularity
from recsys.config.data import DataConfig, LeaveLastOut
from recsys.config.experiment import EvaluationConfig, SampledItems
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset, prepare
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.tables import (
    candidates_in_words,
    choose_candidates,
    evaluate,
    read_candidates,
    sample_candidates,
)
from recsys.inference import scorer as scorer_module
from recsys.inference.ranking import NEVER, rank_targets
from recsys.inference.scorer import Seen
from tests.helpers.logs import log_of, log_of_histories


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """200 users of 12 purchases each, the last two are targets; item 1 is half of all purchases."""
    generator = np.random.default_rng(0)
    items = np.where(generator.random((200, 12)) < 0.5, 1, generator.integers(2, 40, (200, 12)))
    log = log_of_histories({f"u{u:03}": items[u].tolist() for u in range(200)})
    config = DataConfig(split=LeaveLastOut(targets=2))
    return prepare(log, config, tmp_path_factory.mktemp("data") / "log")


@pytest.fixture(scope="module")
def holdout(dataset: PreparedDataset) -> Holdout:
    return dataset.holdout("test")


def lists(histories: Histories) -> list[list[int]]:
    return [histories[slice(b, b + 1)].items.tolist() for b in range(len(histories))]


def test_ranks_among_candidates_by_hand() -> None:
    scorer = Popularity(np.array([0.0, 4, 3, 2, 1]))
    histories = Histories.from_lists([[], [], [1], []])
    targets = np.array([3, 3, 4, 3], dtype=np.int32)
    among = Histories.from_lists([[4, 3], [1, 3, 4], [1, 4, 3], [1, 2]])
    ranks = rank_targets(scorer, histories, targets, "filter", candidates=among)
    assert ranks.tolist() == [1, 2, 2, NEVER]  # the last target is no candidate: never recommended
    ranks = rank_targets(scorer, histories, targets, "allow", candidates=among)
    assert ranks.tolist() == [1, 2, 3, NEVER]


def targets_of(holdout: Holdout) -> dict[int, set[int]]:
    targets: dict[int, set[int]] = {}
    for user, target in zip(holdout.users.tolist(), holdout.targets.tolist(), strict=True):
        targets.setdefault(user, set()).add(target)
    return targets


@pytest.mark.parametrize("seen", ["filter", "allow"])
def test_samples_follow_their_settings(
    dataset: PreparedDataset, holdout: Holdout, seen: Seen
) -> None:
    candidates = sample_candidates(SampledItems(num=5), dataset, "test", holdout, seen)
    assert candidates.name == "sampled 5 (uniform, seed 0)"
    targets, drawn = targets_of(holdout), dict[int, list[int]]()
    histories = lists(holdout.histories.take(holdout.history_rows))
    seen_anyway = 0
    rows = zip(holdout.users.tolist(), histories, lists(candidates.sets), strict=True)
    for user, history, among in rows:
        assert among == sorted(set(among))
        others = set(among) - targets[user]
        assert (targets[user] <= set(among), len(others)) == (True, 5)
        seen_anyway += len(others & set(history))
        assert drawn.setdefault(user, among) == among  # targets of a user are in one list
    assert (seen_anyway == 0) == (seen == "filter")
    again, other = (
        sample_candidates(SampledItems(num=5, seed=seed), dataset, "test", holdout, seen)
        for seed in (0, 1)
    )
    assert again.sets.items.tolist() == candidates.sets.items.tolist()
    assert other.sets.items.tolist() != candidates.sets.items.tolist()


def given(dataset: PreparedDataset, holdout: Holdout) -> pl.DataFrame:
    items = dataset.vocabulary.decode(holdout.targets)
    users = dataset.user_ids.gather(pl.Series(holdout.users))
    columns = {"user_id": pl.concat([users, users]), "item_id": items.append(items * 0 + 2)}
    return pl.DataFrame(columns)


def test_given_candidates(
    dataset: PreparedDataset, holdout: Holdout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table, file = given(dataset, holdout), tmp_path / "candidates.csv"
    strangers = pl.DataFrame({"user_id": ["u000", "nobody"], "item_id": [4711, 3]})
    pl.concat([table, strangers]).sample(fraction=1, shuffle=True, seed=0).write_csv(file)
    with caplog.at_level(logging.WARNING):
        candidates = read_candidates(file, dataset, holdout)
    assert "candidates.csv: 1 candidates outside the catalogue dropped" in caplog.text
    # The order of the rows does not matter.
    assert read_candidates(table, dataset, holdout).name == candidates.name
    (two,) = dataset.vocabulary.encode([2]).tolist()
    targets = targets_of(holdout)
    for user, among in zip(holdout.users.tolist(), lists(candidates.sets), strict=True):
        assert set(among) == {two, *targets[user]}
    constant = Popularity(np.zeros(dataset.num_items + 1))
    ranks = evaluate(constant, holdout, "test", "allow", candidates)
    assert ranks.frame["rank"].to_list() == candidates.sets.lengths.tolist()
    assert ranks.protocol.candidates == candidates.name
    item = dataset.vocabulary.decode(holdout.targets[:1])[0]
    lacking = table.filter((pl.col("user_id") != "u000") | (pl.col("item_id") != item))
    message = rf"^the candidates: item_id {item}, a target of user_id 'u000', is not among"
    with pytest.raises(InputError, match=message):
        read_candidates(lacking, dataset, holdout)


def test_a_config_chooses_and_samples_are_marked(
    dataset: PreparedDataset, holdout: Holdout
) -> None:
    sampled = EvaluationConfig.model_validate({"candidates": "sampled"})
    chosen = choose_candidates(sampled, dataset, "test", holdout)
    assert chosen is not None
    words = candidates_in_words(chosen.name, dataset.num_items)
    assert words.startswith("sampled 100 (uniform, seed 0) candidates (SAMPLED: metrics of sampled")
    assert choose_candidates(EvaluationConfig(), dataset, "test", holdout) is None


def test_given_candidates_are_named_by_their_items_and_by_whose_they_are(tmp_path: Path) -> None:
    """Two runs on other candidates must not pass for comparable, however alike the sets look."""
    rows = [("a", 2, 0), ("a", 3, 1), ("a", 1, 2), ("b", 1, 0), ("b", 2, 1), ("b", 4, 2)]
    rows += [("c", 4, 0), ("c", 5, 1), ("c", 5, 2)]
    data = prepare(log_of(rows), DataConfig(), tmp_path / "out")

    def name(**sets: list[int]) -> str:
        pairs = [(user, item) for user, items in sets.items() for item in items]
        table = pl.DataFrame(pairs, schema=["user_id", "item_id"], orient="row")
        return read_candidates(table, data, data.holdout("test")).name

    usual = name(a=[1, 2], b=[4], c=[5])
    assert name(a=[1, 3], b=[4], c=[5]) != usual  # as many of each, another item
    assert name(a=[1], b=[2, 4], c=[5]) != usual  # the same items end to end, another user's
    assert name(c=[5], b=[4], a=[2, 1]) == usual


@pytest.mark.parametrize("seen", ["filter", "allow"])
def test_samples_of_many_batches_are_those_of_one(
    dataset: PreparedDataset, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many users go through at once decides no draw, and leaves out nobody else's items."""
    for by in ("uniform", "popularity"):
        config = SampledItems.model_validate({"num": 7, "by": by, "seed": 3})
        whole = sample_candidates(config, dataset, "test", dataset.holdout("test"), seen)
        with monkeypatch.context() as patch:
            patch.setattr(scorer_module, "ELEMENTS_PER_BATCH", 1)
            patch.setattr(scorer_module, "FEWEST_USERS", 17)
            parts = sample_candidates(config, dataset, "test", dataset.holdout("test"), seen)
        assert lists(parts.sets) == lists(whole.sets)


def test_popularity_is_that_of_what_was_bought_before_the_targets(tmp_path: Path) -> None:
    """An item that sells in the validation part alone is not popular yet: it is never drawn."""
    rows = [(user, item, time) for user in range(40) for time, item in enumerate([1, 2, 3, 4, 1])]
    late = [(user, 6 if user < 30 else 4, 3) for user in range(40)]  # the validation targets
    log = log_of([row for row in rows if row[2] != 3] + late)
    data = prepare(log, DataConfig(), tmp_path / "out")
    (new,) = data.vocabulary.encode([6]).tolist()
    config = SampledItems.model_validate({"num": 2, "by": "popularity"})

    def sample(part: Part) -> list[list[int]]:
        return lists(sample_candidates(config, data, part, data.holdout(part), "allow").sets)

    assert [new in one for one in sample("valid")] == [
        user < 30 for user in range(40)
    ]  # as the target
    assert any(new in one for one in sample("test"))
