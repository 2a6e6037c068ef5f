"""Fitting: what a run writes and logs, and what it must never lose."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from filelock import FileLock, Timeout
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from recsys.config.data import DataConfig
from recsys.config.experiment import Experiment, TrackingConfig, TrainingConfig
from recsys.config.files import parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.experiments.fit import fit
from recsys.experiments.results import Run
from recsys.folders import BusyError, sole_use
from recsys.inference.catalogue import Catalogue
from recsys.machine import peak_memory_mib, reset_peak_memory
from recsys.serving.bundle import ModelBundle
from recsys.shop.simulation import make_shop
from recsys.tracking import store
from recsys.tracking.registry import local_bundle
from recsys.tracking.store import mlflow_link
from recsys.tracking.tracker import RecordError, track
from recsys.training import loop as loop_module
from recsys.training.loop import build_batches, train, with_enough_epochs


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    log = make_shop(seed=0, num_customers=100).interactions
    config = DataConfig(duplicates="drop_exact", min_user_interactions=3)
    return prepare(log, config, tmp_path_factory.mktemp("data") / "shop")


def experiment_in(folder: Path) -> Experiment:
    return parse_experiment(
        {
            "name": "run",
            "model": {
                "embedding_dim": 8,
                "feed_forward_dim": 8,
                "max_sequence_length": 10,
                "head": {"kind": "dot_product"},
            },
            "training": {"max_epochs": 2, "refit": True},
            "evaluation": {"seen": "allow", "cutoffs": [10]},
            "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
        }
    )


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return experiment_in(tmp_path)


@pytest.fixture(scope="module")
def fitted(
    dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Experiment, Run]:
    """A run that tests only read."""
    folder = tmp_path_factory.mktemp("fitted")
    experiment = experiment_in(folder)
    return experiment, fit(experiment, dataset, folder / "out")


def test_the_run_and_the_bundle_record_how_they_were_made(
    dataset: PreparedDataset, fitted: tuple[Experiment, Run]
) -> None:
    experiment, run = fitted
    logged = MlflowClient(experiment.tracking.absolute_uri).get_run(run.run_id).data
    assert logged.params["data.duplicates"] == "drop_exact"  # the dataset's, not the experiment's
    assert logged.tags["dataset_fingerprint"] == dataset.fingerprint
    assert logged.tags["trained_on"] == "train, valid"
    assert logged.tags["protocol.seen"] == "allow"
    assert logged.metrics["test/ndcg_at_10"] == run.test["ndcg_at_10"].mean
    assert {"train/loss", "train/seconds", "peak_memory_mib"} <= set(logged.metrics)
    assert logged.metrics["valid/ndcg_at_10"] == run.valid["ndcg_at_10"].mean  # not the last epoch
    assert "epoch/valid_ndcg_at_10" in logged.metrics
    assert logged.metrics["fit_seconds"] == run.seconds > 0
    bundle = ModelBundle.open(run.bundle)
    assert bundle.experiment.data == dataset.config
    assert bundle.manifest.trained_on == ("train", "valid")
    commit = bundle.manifest.git_commit
    assert commit is None or len(commit.split("-")[0]) == 40


def test_mlflow_shows_the_dataset_and_a_headline(
    dataset: PreparedDataset, fitted: tuple[Experiment, Run]
) -> None:
    experiment, run = fitted
    client = MlflowClient(experiment.tracking.absolute_uri)
    logged = client.get_run(run.run_id)
    assert logged.inputs is not None
    (found,) = logged.inputs.dataset_inputs
    assert dataset.fingerprint.startswith(found.dataset.digest)
    assert json.loads(found.dataset.source) == {"uri": str(dataset.path)}
    assert json.loads(found.dataset.profile or "")["users"] == dataset.manifest.counts["users"]
    first = {name: value for name, value in logged.data.metrics.items() if "headline" in name}
    assert first == {f"headline/{name}": value for name, value in run.headline.items()}
    assert [*run.headline] == ["ndcg_at_10", "recall_at_10", "mrr", "coverage_at_10"]
    assert run.headline["ndcg_at_10"] == run.test["ndcg_at_10"].mean
    kind = client.get_experiment(logged.info.experiment_id).tags["mlflow.experimentKind"]
    assert kind == "custom_model_development"
    command, link = mlflow_link(experiment.tracking, run.run_id).splitlines()
    assert command == f"mlflow ui --backend-store-uri {experiment.tracking.uri}"
    page = f"/#/experiments/{logged.info.experiment_id}/runs"
    assert link == f"http://127.0.0.1:5000{page}/{run.run_id}?workflowType=machine_learning"


def test_a_training_that_is_too_short_says_so(
    dataset: PreparedDataset,
    experiment: Experiment,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    tree = experiment.model_dump(mode="json", exclude={"data"})
    training = {"max_epochs": 2, "refit": False, "batch_tokens": 200, "learning_rate": 1e-2}
    fit(parse_experiment(tree | {"training": training}), dataset, tmp_path / "out")
    assert "still rising: the best epoch, 2, was the last" in caplog.text
    assert "raise its training.max_epochs" in caplog.text


def test_the_epochs_of_a_small_log_are_more_unless_they_are_named(dataset: PreparedDataset) -> None:
    def planned(*changes: str) -> TrainingConfig:
        experiment = parse_experiment({}, ["model.max_sequence_length=10", *changes])
        return with_enough_epochs(experiment.with_data(dataset.config), dataset).training

    small = "training.batch_tokens=200"
    like = parse_experiment({}, ["model.max_sequence_length=10", small])
    steps = len(build_batches(like, dataset.histories("valid")))
    default = planned(small)
    assert (default.max_epochs - 1) * steps < 2000 <= default.max_epochs * steps
    assert default.validate_every == math.ceil(50 / steps)
    assert default.patience == 10 * default.validate_every
    named = planned(small, "training.max_epochs=3")
    assert named == TrainingConfig(batch_tokens=200, max_epochs=3)
    for own in ("training.patience=7", "training.validate_every=2"):
        changed = planned(small, own)
        usual = parse_experiment({}, [small, own]).training
        assert changed == usual.model_copy(update={"max_epochs": default.max_epochs})
    member = "{model: {max_sequence_length: 10}, max_epochs: 3}"
    assert planned(f"model={{kind: averaged, members: [{member}, {member}]}}").max_epochs == 40
    for many in ("training.batch_tokens=10", "training.validate_every=5"):
        changed = planned("training.batch_tokens=10", many)
        assert changed == parse_experiment({}, ["training.batch_tokens=10", many]).training


def test_the_refitted_model_is_trained_on_all_but_the_test_targets_for_as_many_epochs(
    dataset: PreparedDataset, experiment: Experiment, tmp_path: Path
) -> None:
    """As many as validation chose, and not as many as there were."""
    tree = experiment.model_dump(mode="json", exclude={"data"})
    # Steps too small to change a rank: no epoch is better than the first.
    tree["training"] |= {"max_epochs": 3, "learning_rate": 1e-7, "precision": "float32"}
    experiment = parse_experiment(tree)
    run = fit(experiment, dataset, tmp_path / "out")
    assert run.best_epoch == 1
    spans = zip(dataset.offsets[:-1], dataset.cuts[:, 1], strict=True)
    histories = Histories.from_lists([dataset.items[start:][:end] for start, end in spans])
    catalogue = Catalogue.of(experiment.model, dataset)
    once, twice = (
        train(experiment, catalogue, histories, None, epochs, lambda *_: None)[0].state_dict()
        for epochs in (1, 2)
    )
    weights = ModelBundle.open(run.bundle).model.state_dict()
    assert all(torch.equal(weights[name], weight.cpu()) for name, weight in once.items())
    assert not all(torch.equal(weights[name], weight.cpu()) for name, weight in twice.items())


@pytest.mark.slow
def test_an_interrupted_refit_falls_back_to_the_validated_model(
    dataset: PreparedDataset,
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: list[dict[str, torch.Tensor]] = []

    def interrupted(*arguments: Any, **options: Any) -> object:
        if arguments[3] is None:  # no validation: the refit
            raise KeyboardInterrupt
        found = train(*arguments, **options)
        trained.append({name: weight.clone() for name, weight in found[0].state_dict().items()})
        return found

    monkeypatch.setattr(loop_module, "train", interrupted)
    run = fit(experiment, dataset, tmp_path / "out")
    bundle = ModelBundle.open(run.bundle)
    assert bundle.manifest.trained_on == ("train",)
    weights = bundle.model.state_dict()
    assert all(
        torch.equal(weights[name].cpu(), weight.cpu()) for name, weight in trained[0].items()
    )
    tags = MlflowClient(experiment.tracking.absolute_uri).get_run(run.run_id).data.tags
    assert tags["interrupted"] == "true"
    assert tags["trained_on"] == "train"


@pytest.mark.slow
def test_a_failing_store_does_not_cost_the_model(
    dataset: PreparedDataset,
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fail = Mock(side_effect=MlflowException("the store is full"))
    with monkeypatch.context() as broken:
        broken.setattr(MlflowClient, "log_artifact", fail)
        broken.setattr(MlflowClient, "log_artifacts", fail)
        with pytest.raises(RecordError, match="the store is full") as caught:
            fit(experiment, dataset, tmp_path / "out")
    assert f"{tmp_path / 'out'} has the bundle and all figures" in str(caught.value)
    assert "\n" not in str(caught.value)
    kept = ModelBundle.open(tmp_path / "out" / "bundle").model.state_dict()
    client = MlflowClient(experiment.tracking.absolute_uri)
    (lost,) = client.search_runs(["1"])
    assert lost.info.status == "FAILED"
    caplog.set_level("INFO")
    run = fit(experiment, dataset, tmp_path / "out")
    assert "resuming the refit from the checkpoint, after epoch 2" in caplog.text
    assert run.run_id == lost.info.run_id
    assert client.get_run(run.run_id).info.status == "FINISHED"
    assert local_bundle(f"runs:/{run.run_id}/bundle", experiment.tracking).is_dir()
    again = ModelBundle.open(run.bundle).model.state_dict()
    assert all(torch.equal(again[name], kept[name]) for name in kept)
    assert not (tmp_path / "out.checkpoint").exists()


@pytest.mark.slow
def test_a_store_that_is_locked_for_a_while_loses_nothing(
    dataset: PreparedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock lasts from the first figure to the last but one."""
    file = tmp_path / "mlflow.db"
    where = TrackingConfig(uri=f"sqlite:///{file}")
    experiment = Experiment(name="held", tracking=where)
    with track(experiment, dataset, "popularity", {"a": 1}) as tracker:
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for epoch in range(1, 20):
                tracker.log_metrics({"train/loss": 1 / epoch}, epoch)
            tracker.tag("trained_on", "train")
            other.execute("ROLLBACK")
        assert (len(tracker.metrics), len(tracker.waiting)) == (19, 1)
        assert caplog.text.count("the record is kept, and is sent again at the end") == 1
    client = MlflowClient(where.absolute_uri)
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["trained_on"] == "train"
    points = client.get_metric_history(tracker.run_id, "train/loss")
    assert [point.step for point in points] == [*range(1, 20)]


def test_a_store_is_opened_by_one_process_at_a_time(
    dataset: PreparedDataset,
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two trainings that start together would both make the tables of a new one."""
    lock, opened = FileLock(tmp_path / ".mlflow.db.lock"), []

    def client(uri: str) -> MlflowClient:
        with pytest.raises(Timeout):
            lock.acquire(timeout=0)
        opened.append(uri)
        return MlflowClient(uri)

    monkeypatch.setattr(store, "MlflowClient", client)
    fit(experiment, dataset, tmp_path / "out")
    assert opened


def test_an_unreachable_server_is_reported_within_seconds(
    dataset: PreparedDataset, experiment: Experiment, tmp_path: Path
) -> None:
    uri, started = "http://127.0.0.1:9", time.monotonic()
    tracking = experiment.tracking.model_copy(update={"uri": uri})
    with pytest.raises(InputError, match=rf"tracking\.uri {uri}: cannot be used: .*refused"):
        fit(experiment.model_copy(update={"tracking": tracking}), dataset, tmp_path / "out")
    assert time.monotonic() - started < 20
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("out", "fault"),
    [("out", r"notes\.txt does not belong to a run"), ("out/notes.txt/out", "cannot be written")],
)
def test_a_folder_that_cannot_be_replaced_is_reported_before_the_training(
    dataset: PreparedDataset, experiment: Experiment, tmp_path: Path, out: str, fault: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=fault):
        fit(experiment, dataset, tmp_path / out)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "mlflow.db").exists()


def test_peak_memory_counts_from_its_reset() -> None:
    big = torch.ones(64 << 20, dtype=torch.uint8)  # 64 MiB
    before = peak_memory_mib()["peak_memory_mib"]
    del big
    reset_peak_memory()
    assert 10 < peak_memory_mib()["peak_memory_mib"] < before + 8  # others allocate


@pytest.mark.slow
def test_two_trainings_of_one_name_do_not_share_a_checkpoint(
    dataset: PreparedDataset, experiment: Experiment, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    message = rf"out: in use: process {os.getpid()} on .*, which trains it since 2"
    with sole_use(out, "trains it"), pytest.raises(BusyError, match=message):
        fit(experiment, dataset, out)
    assert not out.exists()
    assert not (tmp_path / "mlflow.db").exists()
    fit(experiment, dataset, out)
    assert not (tmp_path / ".out.lock").exists()
