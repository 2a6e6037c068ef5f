"""Warm starts: a training that begins with the weights of a trained model, on a grown log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow import MlflowClient

import recsys
from recsys.config.data import DataConfig, GlobalTime
from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.batches import Replay, TrainingBatches
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.experiments.fit import fit
from recsys.experiments.results import Run
from recsys.experiments.trainings import Start, plan_start
from recsys.inference.catalogue import item_tables
from recsys.loading import experiment_to_train
from recsys.model.models import Model
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.training.loop import build_batches, new_module
from recsys.training.module import Schedule
from tests.helpers.killed import killed
from tests.helpers.logs import log_of
from tests.helpers.random_models import random_bundle

RING = [f"i{number}" for number in range(8)]
SIZES = {"embedding_dim": 16, "max_sequence_length": 6, "dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "dot product": {"feed_forward_dim": 8, "head": {"kind": "dot_product"}},
    "target attention": {"feed_forward_dim": 8, "head": {"kind": "target_attention"}},
    "hstu": {"kind": "hstu", "times": "past"},
    "masked item": {"kind": "masked_item", "feed_forward_dim": 8},
    "sequence to sequence": {
        "kind": "sequence_to_sequence",
        "feed_forward_dim": 8,
        "max_generated": 4,
    },
    "factorisation machine": {"kind": "factorisation_machine"},
}
MEAN = {
    "kind": "averaged",
    "members": [
        {"model": SIZES | MODELS["target attention"], "max_epochs": 4},
        {"model": SIZES | {"embedding_dim": 8} | MODELS["dot product"], "max_epochs": 8},
    ],
}


def walks(users: int, ring: list[str], first: int, time: int) -> list[tuple[str, str, int]]:
    """Each user buys seven items in the order of the ring, one a day from a time on."""
    return [
        (f"u{first + user:03}", ring[(user + step) % len(ring)], time + step)
        for user in range(users)
        for step in range(7)
    ]


OLD = walks(40, RING, 0, time=0)
NEW_RING = ["i0", "i1", "a new", "z new", "i4", "i5", "i6", "i7"]
"""The new items are between i1 and i4; their ids surround those of the others."""
GROWN = OLD + walks(24, NEW_RING, 40, time=100)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(log_of(OLD), DataConfig(), tmp_path_factory.mktemp("data") / "old")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(log_of(GROWN), DataConfig(), tmp_path_factory.mktemp("data") / "grown")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


def make_experiment(store: str, model: str = "dot product", *overrides: str) -> Experiment:
    tree = {
        "name": "run",
        "model": MEAN if model == "mean" else SIZES | MODELS[model],
        "training": {
            "max_epochs": 12,
            "learning_rate": 0.02,
            "precision": "float32",
            "batch_tokens": 50,
        },
        "evaluation": {"seen": "allow", "cutoffs": [10]},
        "tracking": {"uri": store},
    }
    return parse_experiment(tree, overrides)


@pytest.fixture(scope="module")
def run(old: PreparedDataset, store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    fit(make_experiment(store), old, out)
    return out


def started(bundle: ModelBundle, dataset: PreparedDataset, *overrides: str) -> Start:
    experiment = experiment_to_train(None, bundle.path, overrides)
    return plan_start(experiment.with_data(dataset.config), dataset, Path("elsewhere"))


def start_model(start: Start, dataset: PreparedDataset) -> Model:
    module = new_module(
        start.experiment.planned,
        start.catalogue,
        dataset.histories("valid"),
        Schedule.plan(start.experiment.training, 1, 1),
        warm=start.warm,
    )
    return module.model


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_model_starts_with_its_weights(
    model: str, old: PreparedDataset, grown: PreparedDataset, store: str, tmp_path: Path
) -> None:
    """On the same log all of them; on a grown one those of known items, by their ids."""
    bundle = random_bundle(tmp_path / "bundle", make_experiment(store, model), old)
    before = bundle.model.state_dict()
    same = start_model(started(bundle, old), old).state_dict()
    assert all(torch.equal(same[name], before[name]) for name in before)
    made = start_model(started(bundle, grown), grown)
    after, tables = made.state_dict(), item_tables(made)
    places = torch.from_numpy(grown.vocabulary.encode(old.vocabulary.ids)).long()
    assert tables == {name for name in before if before[name].shape != after[name].shape}
    for name in before:
        if name in tables:
            assert torch.equal(after[name][places], before[name][1:])
            assert not after[name][0].any()
        else:
            assert torch.equal(after[name], before[name])


def test_an_item_with_its_first_interactions_is_new(
    old: PreparedDataset, grown: PreparedDataset, store: str, tmp_path: Path
) -> None:
    """Its row has learned that nobody wants it: the model knew it from the validation part."""
    rows = [*OLD, ("v0", "i1", 50), ("v0", "z new", 51), ("v0", "i2", 52)]
    before = prepare(log_of(rows), DataConfig(), tmp_path / "before")
    bundle = random_bundle(tmp_path / "bundle", make_experiment(store), before)
    assert dict(bundle.item_table.select("item_id", "count").iter_rows())["z new"] == 0
    made = start_model(started(bundle, grown), grown).items.weight
    (token,), (known,) = (v.encode(["z new"]) for v in (grown.vocabulary, bundle.vocabulary))
    assert not torch.equal(made[token], bundle.model.items.weight[known])
    kept = start_model(started(bundle, before), before).items.weight
    assert torch.equal(kept, bundle.model.items.weight)


def logged(store: str, run_id: str, metric: str) -> dict[int, float]:
    history = MlflowClient(store).get_metric_history(run_id, metric)
    return {entry.step: entry.value for entry in history}


def test_a_start_on_the_same_log_begins_at_the_quality_of_the_model(
    run: Path, old: PreparedDataset, store: str, tmp_path: Path
) -> None:
    again = recsys.train(None, old, start=run, out=tmp_path / "again")
    first = MlflowClient(store).search_runs(["1"], "attributes.run_name = 'run'")
    before = max(logged(store, first[0].info.run_id, "epoch/valid_ndcg_at_10").values())
    curve = logged(store, again.run_id, "epoch/valid_ndcg_at_10")
    assert sorted(curve) == [0, 1, 2, 3]  # a quarter of 12 epochs
    assert curve[0] == before
    assert again.valid["ndcg_at_10"].mean == max(curve.values()) >= before
    assert max(logged(store, again.run_id, "train/loss")) == 3


def test_the_members_of_a_mean_start_with_their_weights(
    old: PreparedDataset, grown: PreparedDataset, store: str, tmp_path: Path
) -> None:
    """Each with its own: where a step harms, the answer is the mean that was; else it learns."""
    first = fit(make_experiment(store, "mean"), old, tmp_path / "first")
    before = ModelBundle.open(first.bundle).model.state_dict()
    harm = ["start.learning_rate=10", "training.learning_rate=0.5"]
    kept = recsys.train(None, old, start=first.bundle, out=tmp_path / "kept", overrides=harm)
    after = ModelBundle.open(kept.bundle).model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert kept.valid["ndcg_at_10"] == first.valid["ndcg_at_10"]
    again = recsys.train(None, grown, start=first.bundle, out=tmp_path / "again")
    assert len(logged(store, again.run_id, "train/loss")) == 3  # a quarter of 4 and of 8 epochs
    bundle = ModelBundle.open(again.bundle)
    assert "a new" in bundle.vocabulary.ids
    model = Recommender(bundle)
    assert len(model.recommend([["i7", "i0", "i1"]], k=3, seen="allow")) == 3


def test_the_start_wins_over_a_training_that_harms(
    run: Path, grown: PreparedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harm = ["start.learning_rate=10", "training.learning_rate=0.5", "training.refit=true"]
    result = recsys.train(None, grown, start=run, out=tmp_path / "out", overrides=harm)
    assert result.best_epoch == 0
    assert "no epoch was better than the start" in caplog.text
    weights, before = (
        ModelBundle.open(path).model.state_dict() for path in (result.bundle, run / "bundle")
    )
    same = [torch.equal(weights[name], before[name]) for name in before if name != "items.weight"]
    assert all(same)


def test_new_items_are_recommended_after_a_warm_start(
    run: Path, store: str, tmp_path: Path
) -> None:
    """In fewer epochs than the model took; the run and the bundle say what it started from."""
    rows = OLD + walks(160, NEW_RING, 40, time=100)
    grown = prepare(log_of(rows), DataConfig(), tmp_path / "grown")
    more = ["start.learning_rate=1", "start.epochs=0.5", "start.replay=0"]
    result = recsys.train(None, grown, start=run, out=tmp_path / "out", overrides=more)
    assert result.best_epoch > 0
    model = Recommender.load(result.bundle)
    best = model.recommend([["i7", "i0", "i1"]], k=3, seen="allow")["item_id"].to_list()
    assert "a new" in best
    digest = ModelBundle.open(run).manifest.digest
    start = model.bundle.experiment.start
    assert start is not None
    assert (start.bundle, start.digest) == (str(run), digest)
    assert model.bundle.experiment.name == "run-2"
    params = MlflowClient(store).get_run(result.run_id).data.params
    assert params["start.digest"] == digest
    assert (params["start.replay"], params["training.max_epochs"]) == ("0.0", "12")


def test_an_epoch_mixes_new_and_old_histories(
    run: Path, old: PreparedDataset, grown: PreparedDataset
) -> None:
    start = started(ModelBundle.open(run), grown, "start.replay=0.25")
    histories = grown.histories("valid")
    batches = build_batches(start.experiment.planned, histories, start.warm)
    assert batches.replay is not None
    assert batches.replay.is_new.sum() == 24
    epochs = [sum(len(batch.items) for batch in batches) for _ in range(2)]
    assert epochs == [32, 32]
    same = started(ModelBundle.open(run), old)
    assert build_batches(same.experiment, old.histories("valid"), same.warm).replay is None


def test_each_pass_replays_other_histories() -> None:
    """All new ones in each, every old one in some; parts of a pass are of one sample."""
    histories = Histories.from_lists([[user + 1, 99] for user in range(40)])
    is_new = np.arange(40) < 5
    replay = Replay(is_new, 0.5)
    batches = TrainingBatches(histories, 5, 4, 0, epochs_per_pass=2, replay=replay)
    epochs = [[int(item) for batch in batches for item in batch.items[:, 0]] for _ in range(200)]
    passes = [sorted(a + b) for a, b in zip(epochs[::2], epochs[1::2], strict=True)]
    assert all(items[:5] == [1, 2, 3, 4, 5] and len(set(items)) == 10 for items in passes)
    assert len({tuple(items) for items in passes}) > 10
    assert {item for items in passes for item in items} == set(range(1, 41))


def test_what_cannot_be_combined_is_refused(
    run: Path, old: PreparedDataset, grown: PreparedDataset, store: str, tmp_path: Path
) -> None:
    def refusal(experiment: Experiment, dataset: PreparedDataset = grown) -> str:
        with pytest.raises(InputError) as error:
            fit(experiment, dataset, tmp_path / "out")
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    start = f"start.bundle={run}"
    other = make_experiment(store, "dot product", start, "model.embedding_dim=8")
    assert f"model.embedding_dim=8: {run} was trained with 16" in refusal(other)
    assert f"model.kind=hstu: {run} was trained with next_item" in refusal(
        make_experiment(store, "hstu", start)
    )
    featured = make_experiment(store, "dot product", start, "model.item_features=[kind]")
    assert "model.item_features=[{'kind': 'category', 'column': 'kind'" in refusal(featured)
    assert "start.digest=abc: " in refusal(
        make_experiment(store, "dot product", start, "start.digest=abc")
    )
    foreign = prepare(log_of([("u", f"x{n}", n) for n in range(5)]), DataConfig(), tmp_path / "x")
    assert "no item in common" in refusal(make_experiment(store, "dot product", start), foreign)
    with pytest.raises(InputError, match="would replace the model that it starts from"):
        fit(make_experiment(store, "dot product", start), grown, run)
    with pytest.raises(InputError, match="has no weights to start from: leave start out"):
        parse_experiment({"baseline": "popularity", "start": {"bundle": "x"}})


def by_time(rows: list[tuple[str, str, int]], until: int, path: Path) -> PreparedDataset:
    split = GlobalTime(kind="global_time", valid_from=until - 1, test_from=until)
    return prepare(log_of([row for row in rows if row[2] <= until]), DataConfig(split=split), path)


def test_a_refitted_model_starts_where_its_training_ended(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is new in a day is of the validation part, and the refit learns it."""
    caplog.set_level(logging.DEBUG, logger="recsys")
    rows = [(user, item, 2 * time + int(user[1:]) % 2) for user, item, time in OLD]
    first, second = (by_time(rows, until, tmp_path / f"{until}") for until in (9, 10))
    experiment = make_experiment(store, "dot product", "training.refit=true")
    model = fit(experiment, first, tmp_path / "first")
    with pytest.raises(InputError, match=r"trained on the validation targets of .* \(a refit\)"):
        recsys.train(None, first, start=model.bundle, out=tmp_path / "again")
    caplog.clear()
    result = recsys.train(None, second, start=model.bundle, out=tmp_path / "second")
    assert (result.best_epoch, "may have been trained on" in caplog.text) == (0, False)
    assert "refitting on all but the test targets for 3 epochs" in caplog.text
    manifest = ModelBundle.open(result.bundle).manifest
    assert (manifest.trained_until, manifest.trained_on) == (9, ("train", "valid"))


def test_a_start_that_knows_validation_targets_cannot_win(
    grown: PreparedDataset,
    old: PreparedDataset,
    store: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    experiment = make_experiment(store, "dot product", "training.refit=true")
    model = fit(experiment, old, tmp_path / "refitted")
    harm = ["start.learning_rate=10", "training.learning_rate=0.5", "training.refit=false"]
    result = recsys.train(None, grown, start=model.bundle, out=tmp_path / "out", overrides=harm)
    assert "may have been trained on 40 of the 64 valid targets" in caplog.text
    assert result.best_epoch > 0
    assert 0 in logged(store, result.run_id, "epoch/valid_ndcg_at_10")


def test_a_killed_warm_start_resumes_with_the_same_result(
    run: Path, grown: PreparedDataset, store: str, tmp_path: Path
) -> None:
    changes = ["training.batch_tokens=60", "training.checkpoint_minutes=0", "training.refit=true"]

    def warm(name: str) -> Run:
        return recsys.train(None, grown, start=run, out=tmp_path / name, overrides=changes)

    expected = warm("full")
    killed(lambda: warm("cut"), 8)
    assert (tmp_path / "cut.checkpoint").exists()
    resumed = warm("cut")
    for metric in ("epoch/valid_ndcg_at_10", "train/loss"):
        assert logged(store, resumed.run_id, metric) == logged(store, expected.run_id, metric)
    weights, same = (ModelBundle.open(r.bundle).model.state_dict() for r in (resumed, expected))
    assert all(torch.equal(weights[name], same[name]) for name in same)
