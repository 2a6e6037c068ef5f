"""Times on their way from the log to the model, and what each protocol lets it read of them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from recsys.cli import app
from recsys.config import (
    DataConfig,
    EvaluationConfig,
    Experiment,
    LeaveLastOut,
    TargetAttention,
    parse_experiment,
)
from recsys.data.batches import TrainingBatches
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.metrics.ranks import recall_at
from recsys.evaluation.protocol import protocol_tags
from recsys.experiments.fit import fit
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import rank_targets
from recsys.model.build import build_model
from recsys.model.hstu import TimesRead
from recsys.model.model_inputs import Inputs
from recsys.model.next_item import NextItemModel
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import make_shop
from recsys.training.loop import train

Timed = list[list[tuple[int, int]]]
"""Per user (item, time)."""
ragged = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=6), min_size=1, max_size=6
)


def timed(rows: Timed, asked: list[int] | None = None) -> Histories:
    """From lists; items of token 0 are skipped, with their times."""
    ends = np.cumsum([len(row) for row in rows])
    flat = [pair for row in rows for pair in row]
    items = np.array([item for item, _ in flat], dtype=np.int32)
    times = np.array([time for _, time in flat], dtype=np.int64)
    when = None if asked is None else np.array(asked)
    return Histories.from_spans(items, ends - [len(row) for row in rows], ends, times, when)


def as_lists(histories: Histories) -> Timed:
    assert histories.times is not None
    pairs = list(zip(histories.items.tolist(), histories.times.tolist(), strict=True))
    spans = zip(histories.offsets[:-1], histories.offsets[1:], strict=True)
    return [pairs[start:end] for start, end in spans]


@given(ragged, st.data())
def test_times_go_where_their_items_go(rows: Timed, data: st.DataObject) -> None:
    asked = list(range(100, 100 + len(rows)))
    histories = timed(rows, asked)
    kept = [[pair for pair in row if pair[0]] for row in rows]
    assert as_lists(histories) == kept
    count = data.draw(st.integers(1, 7))
    assert as_lists(histories.newest(count)) == [row[-count:] for row in kept]
    some = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
    taken = histories.take(np.array(some, dtype=np.int64))
    assert as_lists(taken) == [kept[row] for row in some]
    start = data.draw(st.integers(0, len(rows)))
    for part, numbers in (
        (histories.newest(count), asked),
        (taken, [asked[row] for row in some]),
        (histories[start:], asked[start:]),
    ):
        assert part.request_times is not None
        assert part.request_times.tolist() == numbers
    assert as_lists(histories[start:]) == kept[start:]


def test_padded_times_by_hand() -> None:
    rows: Timed = [[(3, 10), (4, 15)], [], [(5, 7)]]
    told, untold = timed(rows, [20, 8, 9]).padded_times(3), timed(rows).padded_times()
    assert told is not None
    assert untold is not None
    assert told.tolist() == [[10, 15, 20, 0], [8, 0, 0, 0], [7, 9, 0, 0]]
    assert untold.tolist() == [[10, 15, 15], [0, 0, 0], [7, 7, 0]]
    assert Histories.from_lists([[3]]).padded_times() is None


def test_a_batch_has_the_times_of_its_inputs_and_of_the_target_behind_them() -> None:
    rows: Timed = [[(1, 10), (2, 20), (3, 35), (4, 80)], [(5, 1), (6, 4)]]
    (batch,) = list(TrainingBatches(timed(rows), 2, batch_tokens=100, seed=0))
    assert batch.targets.tolist() == [[3, 4], [6, 0]]
    assert batch.times is not None
    assert batch.times[0].tolist() == [20, 35, 80]
    assert batch.times[1, :2].tolist() == [1, 4]  # behind that is padding
    (untimed,) = list(TrainingBatches(Histories.from_lists([[1, 2]]), 2, 100, seed=0))
    assert untimed.times is None


LOG = pl.DataFrame(
    [
        *[("a", 5, 10), ("a", 3, 20), ("a", 5, 30), ("a", 3, 40), ("a", 5, 41), ("a", 5, 41)],
        *[("b", 3, 7), ("b", 5, 8), ("b", 3, 9), ("b", 5, 9), ("b", 3, 50)],
    ],
    schema=["user_id", "item_id", "timestamp"],
    orient="row",
)


@pytest.fixture
def dataset(tmp_path: Path) -> PreparedDataset:
    return prepare(LOG, DataConfig(split=LeaveLastOut(targets=2)), tmp_path / "out")


def test_targets_of_one_history_are_asked_for_each_at_its_time(dataset: PreparedDataset) -> None:
    usual, told = dataset.holdout("test"), dataset.holdout("test", "known")
    assert usual.histories.request_times is None
    assert told.targets.tolist() == usual.targets.tolist() == [2, 2, 2, 1]
    assert (usual.history_rows.tolist(), told.history_rows.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 2])
    assert told.histories.request_times is not None
    assert told.histories.request_times.tolist() == [41, 9, 50]
    assert as_lists(told.histories) == [
        [(2, 10), (1, 20), (2, 30), (1, 40)],
        *[[(1, 7), (2, 8), (1, 9)]] * 2,
    ]
    lists = dataset.next_purchases("test", "known").histories
    assert lists.request_times is not None
    assert lists.request_times.tolist() == [41, 9]
    assert dataset.next_purchases("test").histories.request_times is None


def experiment(times: TimesRead, *changes: str) -> Experiment:
    told = "known" if times == "request" else "unknown"
    tree = {
        "model": {
            "kind": "hstu",
            "times": times,
            "embedding_dim": 16,
            "max_sequence_length": 6,
            "dropout": 0.0,
            "head": {"kind": "dot_product"},
        },
        "training": {"learning_rate": 1e-2, "batch_tokens": 600, "precision": "float32"},
        "evaluation": {"seen": "allow", "request_time": told},
    }
    return parse_experiment(tree, changes)


def rhythms(users: int, seed: int, *, lag: int) -> tuple[Histories, np.ndarray]:
    """Pauses are short or long at random, and decide an item: the one after, or the one after that.

    After a short pause an item of 1 to 4 is had, after a long one of 5 to 8; with a lag of 1, one
    purchase later. So with a lag of 0 the time of asking tells which, and nothing else does.
    """
    rng = np.random.default_rng(seed)
    long = rng.random((users, 7)) < 0.5
    pauses = np.where(
        long, rng.integers(80_000, 90_000, long.shape), rng.integers(1, 60, long.shape)
    )
    items = 1 + 4 * np.roll(long, lag, axis=1) + rng.integers(0, 4, long.shape)
    times = pauses.cumsum(axis=1)
    rows = [
        list(zip(*both, strict=True)) for both in zip(items.tolist(), times.tolist(), strict=True)
    ]
    return timed([row[:-1] for row in rows], times[:, -1].tolist()), items[:, -1].astype(np.int32)


@pytest.mark.parametrize(
    ("times", "lag", "learnt"),
    [
        ("none", 0, False),
        ("past", 0, False),  # the future's times would give it away
        ("request", 0, True),
        ("none", 1, False),
        ("past", 1, True),
    ],
)
def test_what_only_times_tell_is_learnt_by_who_may_read_them(
    times: TimesRead, lag: int, learnt: bool
) -> None:
    """recall@4 of the four items in question: near 1, or what guessing gives, about a half."""
    histories, _ = rhythms(400, seed=1, lag=lag)
    unseen, targets = rhythms(300, seed=2, lag=lag)
    model, _ = train(experiment(times), Catalogue(8), histories, None, 12, lambda *_: None)
    ranks = rank_targets(ModelScorer(model, 6), unseen, targets, "allow")
    found = float(recall_at(ranks, 4).mean())
    assert found > 0.95 if learnt else 0.35 < found < 0.65


def make(times: TimesRead, num_items: int = 8) -> NextItemModel:
    torch.manual_seed(5)
    model = build_model(experiment(times).model, num_items)
    assert isinstance(model, NextItemModel)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    return model.eval()


@pytest.mark.parametrize("times", ["past", "request"])
def test_scores_in_company_are_those_alone(times: TimesRead) -> None:
    rng = np.random.default_rng(0)
    rows: Timed = [
        [(int(rng.integers(1, 9)), int(time)) for time in rng.integers(0, 10**6, size).cumsum()]
        for size in (1, 9, 4, 6, 2)
    ]
    histories = timed(rows, [row[-1][1] + 500 for row in rows])
    scorer = ModelScorer(make(times), 6)
    together = scorer.score(histories)
    for row in range(len(rows)):
        assert torch.allclose(together[row], scorer.score(histories[row : row + 1])[0], atol=1e-5)


def test_a_scorer_refuses_histories_without_what_its_model_reads() -> None:
    with pytest.raises(ValueError, match="reads times"):
        ModelScorer(make("past"), 6).score(Histories.from_lists([[1]]))
    with pytest.raises(ValueError, match="asked for"):
        ModelScorer(make("request"), 6).score(timed([[(1, 5)]]))


def test_the_protocol_says_what_is_told(dataset: PreparedDataset) -> None:
    usual, told = EvaluationConfig(), EvaluationConfig(request_time="known")
    tags = [protocol_tags(dataset, config) for config in (usual, told)]
    assert [tag["protocol.request_time"] for tag in tags] == ["unknown", "known"]
    assert tags[0]["protocol.fingerprint"] != tags[1]["protocol.fingerprint"]
    for told_nothing in ({}, {"evaluation": {"seen": "allow"}}):
        tree = {"model": {"kind": "hstu", "times": "request"}, **told_nothing}
        with pytest.raises(InputError, match=r"evaluation: request_time must be known"):
            parse_experiment(tree)


# From raw logs.


def write_bundle(
    path: Path, dataset: PreparedDataset, times: TimesRead, head: TargetAttention | None = None
) -> ModelBundle:
    whole = experiment(times)
    if head is not None:
        whole = whole.model_copy(update={"model": whole.model.model_copy(update={"head": head})})
    torch.manual_seed(5)
    model = build_model(whole.model, dataset.num_items)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    return ModelBundle.write(path, model, whole, dataset, ("train",))


HISTORIES = pl.DataFrame({"user_id": ["z"] * 3, "item_id": [3, 5, 3], "timestamp": [10, 500, 900]})


def test_a_model_that_reads_the_time_of_asking(dataset: PreparedDataset, tmp_path: Path) -> None:
    recommender = Recommender(write_bundle(tmp_path / "bundle", dataset, "request"), dataset)

    def scores(at: float | str | datetime) -> list[float]:
        answer = recommender.score(HISTORIES, [3, 5], at=at)
        best = recommender.recommend(HISTORIES, k=2, at=at)["score"].max()
        assert best == pytest.approx(answer["score"].max(), abs=1e-6)
        found: list[float] = answer["score"].to_list()
        return found

    model = recommender.bundle.model
    items, times = torch.tensor([[1, 2, 1]]), torch.tensor([[10, 500, 900, 86_400]])
    assert isinstance(model, NextItemModel)
    (states,) = model(Inputs(items, torch.tensor([3]), times))
    expected = (states[0, -1] @ model.items.weight[1:].T).tolist()
    assert scores(86_400) == pytest.approx(expected, abs=1e-5)
    assert scores("1970-01-02") == scores(datetime(1970, 1, 2)) == scores(86_400)
    assert scores(901) != pytest.approx(expected, abs=1e-3)
    by_id = recommender.score(users=["a"], candidates=[3, 5], at=50)
    assert len(by_id) == 2
    for at, message in (
        (None, "at: the model reads the request time: say when"),
        ("soon", "at='soon': a number or an ISO 8601 date"),
        (float("nan"), "at=nan: a number or"),
        (899, "at=899: must not be before the last item of user 'z', at 900"),
    ):
        with pytest.raises(InputError, match=message):
            recommender.recommend(HISTORIES, k=1, at=at)
    with pytest.raises(InputError, match="times of interactions: give a log with a timestamp"):
        recommender.recommend([[3, 5]], k=1, at=50)


def test_a_model_that_reads_past_times_needs_no_time_of_asking(
    dataset: PreparedDataset, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "bundle", dataset, "past", TargetAttention(head_dim=4))
    recommender = Recommender(bundle, dataset)
    usual = recommender.score(HISTORIES, [3, 5])
    assert recommender.score(HISTORIES, [3, 5], at=7)["score"].equals(usual["score"])
    slower = HISTORIES.with_columns(timestamp=pl.Series([10, 500, 90_000]))
    assert not np.allclose(recommender.score(slower, [3, 5])["score"], usual["score"], atol=1e-4)
    with pytest.raises(InputError, match="reads the times of interactions"):
        recommender.recommend([[3, 5]], k=1)
    for ask in (lambda: recommender.explain([3], 5), lambda: recommender.inspect([3])):
        with pytest.raises(InputError, match="reads the times of interactions"):
            ask()


@pytest.mark.parametrize("times", ["past", "request"])
def test_what_is_explained_is_the_score_at_that_time(
    times: TimesRead, dataset: PreparedDataset, tmp_path: Path
) -> None:
    head = TargetAttention(num_heads=1, head_dim=4, kv_source="states")
    recommender = Recommender(write_bundle(tmp_path / "bundle", dataset, times, head), dataset)
    maps = []
    for at in (901, 86_400):
        parts = recommender.explain(HISTORIES, 5, at=at)
        whole = parts["contribution"].sum() + parts["dot_product"][0]
        score = recommender.score(HISTORIES, [5], at=at)["score"].item()
        assert whole == pytest.approx(score, abs=1e-5)
        (target,) = recommender.inspect(HISTORIES, items=[3, 5], at=at)
        assert target.weights.shape == (1, 2, 3)
        maps.append(target.weights)
    earlier, later = (recommender.explain(HISTORIES, 5, at=at) for at in (901, 86_400))
    assert earlier.equals(later) == (times == "past")
    assert np.array_equal(maps[0], maps[1]) == (times == "past")
    if times == "request":
        with pytest.raises(InputError, match="say when"):
            recommender.explain(HISTORIES, 5)


def test_the_terminal_asks_at_a_time(dataset: PreparedDataset, tmp_path: Path) -> None:
    head = TargetAttention(num_heads=1, head_dim=4)
    bundle = write_bundle(tmp_path / "bundle", dataset, "request", head)
    asked = [str(bundle.path), "--user", "a", "--data", str(dataset.path), "--at", "86400"]
    result = CliRunner().invoke(app, ["explain", *asked, "--item", "5", "--json"])
    assert result.exit_code == 0, result.output
    recommender = Recommender(bundle, dataset)
    expected = recommender.explain(recommender.read_histories(users=["a"]), 5, at=86_400)
    shown = [row["contribution"] for row in json.loads(result.stdout)]
    assert shown == pytest.approx(expected["contribution"].to_list())
    maps = ["inspect", *asked[:-2], "--out", str(tmp_path / "maps")]
    refused = CliRunner().invoke(app, maps)
    assert refused.exit_code != 0
    assert not (tmp_path / "maps").exists()
    assert CliRunner().invoke(app, [*maps, "--at", "86400"]).exit_code == 0


def test_attention_maps_of_hstu_are_those_of_its_head(
    dataset: PreparedDataset, tmp_path: Path
) -> None:
    head = TargetAttention(num_heads=1, head_dim=4)
    recommender = Recommender(write_bundle(tmp_path / "target", dataset, "none", head))
    assert [one.kind for one in recommender.inspect([3, 5], items=[3])] == ["target"]
    assert len(recommender.explain([3, 5], 3)) == 2
    assert len(recommender.recommend([[3], []], k=2, seen="allow")) == 4
    plain = Recommender(write_bundle(tmp_path / "plain", dataset, "none"))
    with pytest.raises(InputError, match="no attention to look at, of weights that sum to 1"):
        plain.inspect([3, 5])


def test_the_whole_way_with_the_time_of_asking(tmp_path: Path) -> None:
    """Figures of the run are those of its bundle, whose times come from the dataset."""
    config = DataConfig(duplicates="drop_exact", min_user_interactions=3)
    data = prepare(make_shop(seed=0, num_customers=60).interactions, config, tmp_path / "shop")
    whole = experiment(
        "request",
        "training.max_epochs=1",
        "training.refit=true",
        f"tracking.uri=sqlite:///{tmp_path}/mlflow.db",
    )
    run = fit(whole, data, tmp_path / "run")
    bundle = ModelBundle.open(run.bundle)
    told = data.holdout("test", "known")
    ranks = rank_targets(ModelScorer(bundle.model, 6), told.histories, told.targets, "allow")
    assert float(recall_at(ranks, 10).mean()) == pytest.approx(run.test["recall_at_10"].mean)
