"""Suites: which runs they start, which they skip, and which mistakes they report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from mlflow import MlflowClient

from recsys.config.experiment import Experiment
from recsys.config.files import flatten
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.experiments import suite as suite_module
from recsys.experiments.fit import fit
from recsys.experiments.results import Run
from recsys.experiments.suite import Suite, load_suite, run_suite
from recsys.reports.comparison import compare
from recsys.training import loop
from tests.helpers.commands import run
from tests.helpers.logs import WALKS

CONFIGS = Path(__file__).parents[2] / "configs"
TREE: dict[str, Any] = {
    "name": "small",
    "seeds": [0, 1],
    "model": {"embedding_dim": 8, "feed_forward_dim": 8, "max_sequence_length": 5},
    "training": {"max_epochs": 1, "batch_tokens": 100},
    "datasets": [
        {"name": "every", "evaluation": {"seen": "allow", "cutoffs": [2]}},
        {"name": "unseen", "model": {"dropout": 0.1}},
    ],
    "models": [
        {"name": "sasrec", "model": {"head": {"kind": "dot_product"}, "dropout": 0.3}},
        {"name": "bert4rec", "model": {"kind": "masked_item"}, "training": {"max_epochs": 2}},
    ],
    "baselines": ["popularity", "markov"],
}
ALIKE = {"datasets": [{"name": "a"}, {"name": "a-b"}], "models": [{"name": "b-c"}, {"name": "c"}]}


def make_suite(folder: Path, **changes: Any) -> Suite:
    path = folder / "suite.yaml"
    tracking = {"uri": f"sqlite:///{folder}/mlflow.db"}
    path.write_text(yaml.safe_dump({**TREE, "tracking": tracking, **changes}))
    return load_suite(path)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(WALKS, out=tmp_path_factory.mktemp("data") / "walks")


def test_a_model_overrides_its_dataset_which_overrides_the_suite(tmp_path: Path) -> None:
    suite = make_suite(tmp_path)
    every, unseen = suite.datasets
    sasrec, bert4rec = suite.models
    experiment = suite.experiment(unseen, sasrec, seed=1)
    assert (experiment.name, experiment.seed) == ("small-unseen-sasrec-s1", 1)
    model = experiment.model
    assert (model.family, model.embedding_dim) == ("dot_product", 8)
    assert flatten(experiment)["model.dropout"] == 0.3
    assert flatten(suite.experiment(unseen, bert4rec, seed=0))["model.dropout"] == 0.1
    assert suite.experiment(unseen, bert4rec, seed=0).training.max_epochs == 2
    assert suite.experiment(every).evaluation.seen == "allow"
    assert suite.experiment(every).evaluation.cutoffs == (2,)
    assert suite.experiment(unseen).evaluation.seen == "filter"
    plain = {"name": "plain", "count_ensemble": None}
    suite = make_suite(tmp_path, models=[plain, {"name": "counts"}], count_ensemble={})
    models = [suite.experiment(every, model) for model in suite.models]
    assert [model.count_ensemble is not None for model in models] == [False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": []}, "modle: unknown key; did you mean 'model'?"),
        ({"seeds": [0, 0]}, "seeds: 0 is used twice"),
        (
            {"models": [{"name": "m", "data": {"k_core": True}}]},
            "'m': data and evaluation belong to a dataset",
        ),
        ({"datasets": [{"name": "a"}, {"name": "a"}]}, "'a' is used twice"),
        ({"datasets": [{"name": "../a"}]}, "datasets.0.name: "),
        (ALIKE, "suite.yaml: two experiments are called small-a-b-c-s0"),
        ({"training": {"max_epoch": 3}}, "training.max_epoch: unknown key; did you mean"),
        ({"baselines": ["markow"]}, "baselines.0: input should be 'popularity'"),
        ({"models": [{"name": "m", "model": {"num_heads": 3}}]}, "m-s0: model.num_heads: must"),
    ],
)
def test_mistakes_are_reported_before_anything_is_run(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        make_suite(tmp_path, **change)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def statuses(suite: Suite) -> Counter[str]:
    client = MlflowClient(suite.tracking.absolute_uri)
    (known,) = [found for found in client.search_experiments() if found.name == "recsys"]
    return Counter(run.info.status for run in client.search_runs([known.experiment_id]))


@pytest.mark.slow
def test_a_killed_suite_resumes(
    tmp_path: Path, dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = make_suite(tmp_path)
    started: list[str] = []

    def killed(experiment: Experiment, *rest: Any) -> Run:
        started.append(experiment.name)
        if len(started) == 3:
            fail = Mock(side_effect=MemoryError)
            monkeypatch.setattr("recsys.experiments.fit.git_commit", fail)
        return fit(experiment, *rest)

    monkeypatch.setattr(suite_module, "fit", killed)
    with pytest.raises(MemoryError):
        run_suite(suite, lambda _: dataset, tmp_path / "runs")
    assert statuses(suite) == {"FINISHED": 2, "FAILED": 1}
    monkeypatch.undo()

    again: list[str] = []

    def counted(experiment: Experiment, *rest: Any) -> Run:
        again.append(experiment.name)
        return fit(experiment, *rest)

    monkeypatch.setattr(suite_module, "fit", counted)
    runs = run_suite(suite, lambda _: dataset, tmp_path / "runs")
    assert again == [started[-1], *(f"small-every-bert4rec-s{seed}" for seed in [1])] + [
        f"small-unseen-{model}-s{seed}" for model in ("sasrec", "bert4rec") for seed in (0, 1)
    ]
    assert {name: len(found) for name, found in runs.items()} == {"every": 6, "unseen": 6}
    assert statuses(suite) == {"FINISHED": 12}  # the failed run was resumed
    names = [row.name for row in compare(runs["every"], suite.tracking).rows]
    assert names == [
        *("small-every-sasrec-s0", "small-every-sasrec-s1"),
        *("small-every-bert4rec-s0", "small-every-bert4rec-s1"),
        *("small-every-markov", "small-every-popularity"),
    ]

    again.clear()  # all finished: nothing is run, and the same runs are found
    assert run_suite(suite, lambda _: dataset, tmp_path / "runs") == runs
    assert not again
    other = make_suite(tmp_path, training={**TREE["training"], "learning_rate": 0.1})
    assert run_suite(other, lambda _: dataset, tmp_path / "runs") != runs
    assert len(again) == 8  # a changed setting makes another run


@pytest.mark.slow
def test_a_training_ended_early_by_ctrl_c_is_not_finished(
    tmp_path: Path, dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = make_suite(tmp_path, seeds=[0], models=TREE["models"][:1], baselines=[])
    tags: list[str] = []

    def interrupted(experiment: Experiment, *rest: Any) -> Run:
        run = fit(experiment, *rest)
        client = MlflowClient(experiment.tracking.absolute_uri)
        client.set_tag(run.run_id, "interrupted", "true")  # as fit does
        tags.append(run.run_id)
        return run

    monkeypatch.setattr(suite_module, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, lambda _: dataset, tmp_path / "runs")
    monkeypatch.undo()
    runs = run_suite(suite, lambda _: dataset, tmp_path / "runs")
    assert len(tags) == 1
    assert tags[0] not in runs["every"]


def test_a_small_log_without_named_epochs_is_trained_for_more_of_them_and_once(
    tmp_path: Path, dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_ENOUGH_STEPS", 42)
    changes: dict[str, Any] = {
        "seeds": [0],
        "training": {"batch_tokens": 1000},
        "datasets": TREE["datasets"][:1],
        "models": TREE["models"][:1],
    }
    suite = make_suite(tmp_path, **changes)
    runs = run_suite(suite, lambda _: dataset, tmp_path / "runs")
    assert len(runs["every"]) == 3
    (run, *_) = runs["every"]
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    assert client.get_run(run).data.params["training.max_epochs"] == "42"
    assert run_suite(suite, lambda _: dataset, tmp_path / "runs") == runs
    changes["models"] = [TREE["models"][0] | {"name": "renamed"}]  # a row has the name of now
    others = run_suite(make_suite(tmp_path, **changes), lambda _: dataset, tmp_path / "runs")
    assert others["every"][0] != run
    assert others["every"][1:] == runs["every"][1:]


def test_a_run_that_refuses_its_data_is_skipped(
    tmp_path: Path,
    dataset: PreparedDataset,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("recsys.baselines.neighbours.MAX_ITEMS", 3)
    suite = make_suite(tmp_path, models=[], baselines=["popularity", "ease"])
    runs = run_suite(suite, lambda _: dataset, tmp_path / "runs")
    assert {name: len(found) for name, found in runs.items()} == {"every": 1, "unseen": 1}
    assert "small-every-ease: skipped: ease: the catalogue has 6 items" in caplog.text


def test_a_store_that_cannot_be_used_ends_a_suite(tmp_path: Path, dataset: PreparedDataset) -> None:
    suite = make_suite(tmp_path, tracking={"uri": "sqlite:////proc/none/mlflow.db"})
    with pytest.raises(InputError, match="mlflow.db: cannot be written"):
        run_suite(suite, lambda _: dataset, tmp_path / "runs")


def test_an_unreadable_checkpoint_is_not_skipped(tmp_path: Path, dataset: PreparedDataset) -> None:
    """Its run would be missing from the comparison without notice."""
    suite = make_suite(tmp_path, baselines=[])
    checkpoint = tmp_path / "runs" / "small-every-sasrec-s0.checkpoint"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"hours of work")
    with pytest.raises(InputError, match=r"small-every-sasrec-s0\.checkpoint: cannot be read"):
        run_suite(suite, lambda _: dataset, tmp_path / "runs")
    assert checkpoint.read_bytes() == b"hours of work"


def test_the_command_prepares_runs_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WALKS.write_csv("walks.csv")
    tree = {"data": {"source": "walks.csv"}, "datasets": [{"name": "walks"}], "models": []}
    make_suite(tmp_path, **tree)
    printed = run("suite", "suite.yaml", "--tracking-uri", "sqlite:///x.db")
    assert "small-walks-markov" in printed
    assert Path("x.db").exists()
    assert not Path("mlflow.db").exists()


@pytest.mark.parametrize(
    ("name", "split"), [("suite", "leave_last_out"), ("suite-global-time", "global_time")]
)
def test_the_shipped_suites_load_with_the_expected_runs(name: str, split: str) -> None:
    suite = load_suite(CONFIGS / f"{name}.yaml")
    assert (suite.name, len(suite.seeds), suite.baselines) == (name, 3, None)
    for entry in suite.datasets:
        experiment = suite.experiment(entry, suite.models[1], 2)
        assert experiment.data.source.removesuffix("-timed") == entry.name
        assert experiment.data.split.kind == split
