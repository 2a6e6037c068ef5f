"""Times of interactions and requests, from the log to the model, in each protocol."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recsys.config.data import DataConfig, LeaveLastOut
from recsys.config.experiment import EvaluationConfig, Experiment
from recsys.config.files import parse_experiment
from recsys.config.model import TargetAttention
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.metrics import metric_values
from recsys.evaluation.tables import protocol_tags
from recsys.experiments.fit import fit
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import rank_targets
from recsys.model.build import build_model
from recsys.model.encoder import TimesRead
from recsys.model.models import ModelInputs, NextItemModel
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import make_shop
from recsys.training.loop import train
from tests.helpers.commands import refused, run_json
from tests.helpers.logs import log_of
from tests.helpers.random_models import random_bundle

Timed = list[list[tuple[int, int]]]
"""The (item, time) pairs of each user."""
ragged = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=6), min_size=1, max_size=6
)


def timed(rows: Timed, request_times: list[int] | None = None) -> Histories:
    """Return histories from lists, without items of token 0 and their times."""
    ends = np.cumsum([len(row) for row in rows])
    flat = [pair for row in rows for pair in row]
    items = np.array([item for item, _ in flat], dtype=np.int32)
    times = np.array([time for _, time in flat], dtype=np.int64)
    requests = None if request_times is None else np.array(request_times)
    offsets = np.concatenate([[0], ends])
    log = Histories(items, offsets, times)
    return replace(log.spans(offsets[:-1], offsets[1:]), request_times=requests)


def as_lists(histories: Histories) -> Timed:
    assert histories.times is not None
    pairs = list(zip(histories.items.tolist(), histories.times.tolist(), strict=True))
    spans = zip(histories.offsets[:-1], histories.offsets[1:], strict=True)
    return [pairs[start:end] for start, end in spans]


@given(ragged, st.data())
def test_times_follow_their_items(rows: Timed, data: st.DataObject) -> None:
    requests = list(range(100, 100 + len(rows)))
    histories = timed(rows, requests)
    kept = [[pair for pair in row if pair[0]] for row in rows]
    assert as_lists(histories) == kept
    count = data.draw(st.integers(1, 7))
    assert as_lists(histories.latest(count)) == [row[-count:] for row in kept]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5))
    taken = histories.take(np.array(chosen, dtype=np.int64))
    assert as_lists(taken) == [kept[row] for row in chosen]
    start = data.draw(st.integers(0, len(rows)))
    for part, numbers in (
        (histories.latest(count), requests),
        (taken, [requests[row] for row in chosen]),
        (histories[start:], requests[start:]),
    ):
        assert part.request_times is not None
        assert part.request_times.tolist() == numbers
    assert as_lists(histories[start:]) == kept[start:]


def test_padded_times_by_hand() -> None:
    rows: Timed = [[(3, 10), (4, 15)], [], [(5, 7)]]
    with_requests, without = timed(rows, [20, 8, 9]).padded_times(3), timed(rows).padded_times()
    assert with_requests is not None
    assert without is not None
    assert with_requests.tolist() == [[10, 15, 20, 0], [8, 0, 0, 0], [7, 9, 0, 0]]
    assert without.tolist() == [[10, 15, 15], [0, 0, 0], [7, 7, 0]]
    assert Histories.from_lists([[3]]).padded_times() is None


LOG = log_of(
    [
        *[("a", 5, 10), ("a", 3, 20), ("a", 5, 30), ("a", 3, 40), ("a", 5, 41), ("a", 5, 41)],
        *[("b", 3, 7), ("b", 5, 8), ("b", 3, 9), ("b", 5, 9), ("b", 3, 50)],
    ]
)


@pytest.fixture
def dataset(tmp_path: Path) -> PreparedDataset:
    return prepare(LOG, DataConfig(split=LeaveLastOut(targets=2)), tmp_path / "out")


def test_targets_with_the_same_history_have_their_own_request_times(
    dataset: PreparedDataset,
) -> None:
    unknown, known = dataset.holdout("test"), dataset.holdout("test", "known")
    assert unknown.histories.request_times is None
    assert known.targets.tolist() == unknown.targets.tolist() == [2, 2, 2, 1]
    assert unknown.history_rows.tolist() == [0, 0, 1, 1]
    assert known.history_rows.tolist() == [0, 0, 1, 2]
    assert known.histories.request_times is not None
    assert known.histories.request_times.tolist() == [41, 9, 50]
    assert as_lists(known.histories) == [
        [(2, 10), (1, 20), (2, 30), (1, 40)],
        *[[(1, 7), (2, 8), (1, 9)]] * 2,
    ]


def experiment(times: TimesRead, *changes: str) -> Experiment:
    request_time = "known" if times == "request" else "unknown"
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
        "evaluation": {"seen": "allow", "request_time": request_time},
    }
    return parse_experiment(tree, changes)


def rhythms(users: int, seed: int, *, lag: int) -> tuple[Histories, np.ndarray]:
    """After a short pause comes one of items 1 to 4, after a long one of 5 to 8; or lag later."""
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
    ("times", "lag", "learned"),
    [
        ("none", 0, False),
        ("past", 0, False),  # times of the future would reveal the target
        ("request", 0, True),
        ("none", 1, False),
        ("past", 1, True),
    ],
)
def test_only_a_model_that_reads_the_times_learns_from_them(
    times: TimesRead, lag: int, learned: bool
) -> None:
    """recall@4 of four likely items: near 1 if learned, about 0.5 by guessing."""
    histories, _ = rhythms(400, seed=1, lag=lag)
    unseen, targets = rhythms(300, seed=2, lag=lag)
    model, _ = train(experiment(times), Catalogue(8), histories, None, 12, lambda *_: None)
    ranks = rank_targets(ModelScorer(model, 6), unseen, targets, "allow")
    found = float(metric_values(ranks, "recall_at_4").mean())
    assert found > 0.95 if learned else 0.35 < found < 0.65


def random_model(times: TimesRead, num_items: int = 8) -> NextItemModel:
    torch.manual_seed(5)
    model = build_model(experiment(times).model, num_items)
    assert isinstance(model, NextItemModel)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    return model.eval()


@pytest.mark.parametrize("times", ["past", "request"])
def test_scores_of_a_batch_equal_scores_one_by_one(times: TimesRead) -> None:
    rng = np.random.default_rng(0)
    rows: Timed = [
        [(int(rng.integers(1, 9)), int(time)) for time in rng.integers(0, 10**6, size).cumsum()]
        for size in (1, 9, 4, 6, 2)
    ]
    histories = timed(rows, [row[-1][1] + 500 for row in rows])
    scorer = ModelScorer(random_model(times), 6)
    together = scorer.score(histories)
    for row in range(len(rows)):
        assert torch.allclose(together[row], scorer.score(histories[row : row + 1])[0], atol=1e-5)


def test_the_protocol_names_the_request_time(dataset: PreparedDataset) -> None:
    configs = EvaluationConfig(), EvaluationConfig(request_time="known")
    tags = [protocol_tags(dataset, config) for config in configs]
    assert [tag["protocol.request_time"] for tag in tags] == ["unknown", "known"]
    for settings in ({}, {"evaluation": {"seen": "allow"}}):
        tree = {"model": {"kind": "hstu", "times": "request"}, **settings}
        with pytest.raises(InputError, match=r"evaluation.request_time must be known"):
            parse_experiment(tree)


# --- from raw logs


def write_bundle(
    path: Path, dataset: PreparedDataset, times: TimesRead, head: TargetAttention | None = None
) -> ModelBundle:
    settings = experiment(times)
    if head is not None:
        changed = settings.model.model_copy(update={"head": head})
        settings = settings.model_copy(update={"model": changed})
    return random_bundle(path, settings, dataset)


HISTORIES = pl.DataFrame({"user_id": ["z"] * 3, "item_id": [3, 5, 3], "timestamp": [10, 500, 900]})


def test_a_model_that_reads_the_request_time(dataset: PreparedDataset, tmp_path: Path) -> None:
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
    states, *_ = model(ModelInputs(items, torch.tensor([3]), times))
    expected = (states[0, -1] @ model.items.weight[1:].T).tolist()
    assert scores(86_400) == pytest.approx(expected, abs=1e-5)
    assert scores("1970-01-02") == scores(datetime(1970, 1, 2)) == scores(86_400)
    assert scores(901) != pytest.approx(expected, abs=1e-3)
    assert len(scores(900)) == 2  # at the time of the last item
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
    with pytest.raises(InputError, match="times of interactions: give times"):
        recommender.recommend([[3, 5]], k=1, at=50)
    assert recommender.recommend([[]], k=1, at=50)["source"].to_list() == ["popularity"]


def test_lists_without_times_get_the_usual_ones(
    dataset: PreparedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = write_bundle(tmp_path / "bundle", dataset, "past", TargetAttention(head_dim=4))
    known = dataset.histories("valid")
    times = [known[user : user + 1].times for user in range(len(known))]
    gaps = np.concatenate([np.diff(each) for each in times if each is not None])
    gap = bundle.manifest.usual_gap
    assert gap is not None
    assert gap == int(np.median(gaps))
    recommender = Recommender(bundle, dataset)
    log = HISTORIES.with_columns(timestamp=pl.Series([0, gap, 2 * gap]))
    found = recommender.score([[3, 5, 3]], [3, 5])
    assert found["score"].equals(recommender.score(log, [3, 5])["score"])
    assert f"it takes {gap}, the median of the log" in caplog.text
    recommender.explain([3], 5)
    user = dataset.user_ids[:1]
    before = recommender.read_histories(users=user).histories.times
    after = recommender.read_histories([[3, 5]], users=user)
    assert before is not None
    assert after.histories.times is not None
    assert after.histories.times.tolist() == [*before, before[-1] + gap, before[-1] + 2 * gap]
    assert after.assumed_gap == gap


@pytest.mark.parametrize("times", ["past", "request"])
def test_explanations_sum_to_the_score_at_the_request_time(
    times: TimesRead, dataset: PreparedDataset, tmp_path: Path
) -> None:
    head = TargetAttention(num_heads=1, head_dim=4)
    recommender = Recommender(write_bundle(tmp_path / "bundle", dataset, times, head), dataset)
    for at in (901, 86_400):
        parts = recommender.explain(HISTORIES, 5, at=at)
        total = parts["contribution"].sum() + parts["rest"][0]
        score = recommender.score(HISTORIES, [5], at=at)["score"].item()
        assert total == pytest.approx(score, abs=1e-5)
    earlier, later = (recommender.explain(HISTORIES, 5, at=at) for at in (901, 86_400))
    assert earlier.equals(later) == (times == "past")
    if times == "request":
        with pytest.raises(InputError, match="say when"):
            recommender.explain(HISTORIES, 5)


def test_the_commands_take_a_request_time(dataset: PreparedDataset, tmp_path: Path) -> None:
    head = TargetAttention(num_heads=1, head_dim=4)
    bundle = write_bundle(tmp_path / "bundle", dataset, "request", head)
    words = ["explain", bundle.path, "--user", "a", "--data", dataset.path, "--item", 5]
    recommender = Recommender(bundle, dataset)
    expected = recommender.explain(recommender.read_histories(users=["a"]), 5, at=86_400)
    shown = [row["contribution"] for row in run_json(*words, "--at", 86400)]
    assert shown == pytest.approx(expected["contribution"].to_list())
    assert refused(*words)


def test_a_run_with_the_request_time(tmp_path: Path) -> None:
    """The metrics of the run are those of its bundle with the times of the dataset."""
    config = DataConfig(duplicates="drop_exact", min_user_interactions=3)
    data = prepare(make_shop(seed=0, num_customers=60).interactions, config, tmp_path / "shop")
    settings = experiment(
        "request",
        "training.max_epochs=1",
        "training.refit=true",
        f"tracking.uri=sqlite:///{tmp_path}/mlflow.db",
    )
    run = fit(settings, data, tmp_path / "run")
    bundle = ModelBundle.open(run.bundle)
    test = data.holdout("test", "known")
    ranks = rank_targets(ModelScorer(bundle.model, 6), test.histories, test.targets, "allow")
    assert float(metric_values(ranks, "recall_at_10").mean()) == pytest.approx(
        run.test["recall_at_10"].mean
    )
