"""The search: its trials, resuming, pruning, and that it never uses the test targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
import yaml

from recsys.config.experiment import Experiment
from recsys.config.files import flatten, load_experiment, load_section, parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.experiments import tune as tune_module
from recsys.experiments.tune import Search, tune
from recsys.training.epochs import MONITOR, Curve
from recsys.training.loop import train
from tests.helpers.commands import run_json
from tests.helpers.logs import WALKS

SPACE: dict[str, Any] = {
    "training.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "model.num_blocks": {"low": 0, "high": 2},
    "model.norm": {"choices": ["pre", "post"]},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(WALKS, out=tmp_path_factory.mktemp("data") / "walks")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return parse_experiment(
        {
            "name": "walks",
            "model": {"embedding_dim": 8, "feed_forward_dim": 8, "head": {"kind": "dot_product"}},
            "training": {"max_epochs": 2, "batch_tokens": 100, "precision": "float32"},
            "evaluation": {"seen": "allow"},
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        }
    )


def make_search(**changes: Any) -> Search:
    return Search.model_validate({"space": SPACE, "trials": 3, **changes})


def fake_train(values: dict[str, list[float]], tried: list[Experiment]) -> Any:
    """Replace `train`: return given validation metrics of each epoch, by the norm of the model."""

    def fake(experiment: Experiment, *rest: Any) -> tuple[None, Curve]:
        tried.append(experiment)
        curve, report = Curve(), rest[4]
        for epoch, value in enumerate(values[experiment.model.norm], 1):  # type: ignore[union-attr]
            curve.epochs.append({MONITOR: value})
            report(epoch, curve.epochs[-1])
        return None, curve

    return fake


def test_the_best_on_validation_wins_and_a_second_call_resumes(
    dataset: PreparedDataset, experiment: Experiment, tmp_path: Path
) -> None:
    first = tune(experiment, dataset, make_search())
    assert first.trials == 3
    study = optuna.load_study(study_name=first.study, storage=first.storage)
    assert first.storage == f"sqlite:///{tmp_path / 'optuna.db'}"
    assert first.ndcg_at_10 == max(t.value for t in study.trials if t.value is not None)
    assert first.experiment.name == "walks-tuned"
    found = first.experiment.training.learning_rate
    assert found == study.best_trial.params["training.learning_rate"]
    again = tune(experiment, dataset, make_search(trials=5))
    assert (again.study, again.trials) == (first.study, 5)
    proposed = [json.dumps(trial.params) for trial in study.get_trials()]
    assert len(set(proposed)) == 5  # the sampler did not repeat its proposals
    assert tune(experiment, dataset, make_search(trials=5)).trials == 5
    narrower = {"model.num_blocks": SPACE["model.num_blocks"]}
    other = tune(experiment, dataset, make_search(space=narrower, trials=1))
    assert (other.study != first.study, other.trials) == (True, 1)


def test_a_trial_below_the_median_is_pruned(
    dataset: PreparedDataset, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Experiment] = []
    values = {"pre": [0.2, 0.4], "post": [0.1, 0.9]}
    monkeypatch.setattr(tune_module, "train", fake_train(values, tried))
    space = {"model.norm": {"choices": ["pre"]}}
    assert tune(experiment, dataset, make_search(space=space, trials=6)).pruned == 0
    study = optuna.load_study(
        study_name=(found := tune(experiment, dataset, make_search(space=space, trials=6))).study,
        storage=found.storage,
    )
    assert found.ndcg_at_10 == 0.4
    values["pre"] = [0.1, 0.9]  # worse than all at first: it is pruned before its last epoch
    again = tune(experiment, dataset, make_search(space=space, trials=7))
    assert (again.trials, again.pruned, again.ndcg_at_10) == (7, 1, 0.4)
    assert study.get_trials()[-1].last_step == 500  # of 1,000: half of its epochs
    assert len(tried) == 7


def test_ctrl_c_gives_the_best_so_far(
    dataset: PreparedDataset, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def interrupted(candidate: Experiment, *rest: Any) -> Any:
        calls.append(candidate.name)
        if len(calls) != 2:
            return train(candidate, *rest)

        report = Mock(side_effect=KeyboardInterrupt)
        arguments = [*rest[:4], report, *rest[5:]]
        return train(candidate, *arguments)

    monkeypatch.setattr(tune_module, "train", interrupted)
    assert tune(experiment, dataset, make_search()).trials == 1
    assert tune(experiment, dataset, make_search()).trials == 3  # two more
    assert len(calls) == 4


def test_incompatible_values_do_not_end_the_search(
    dataset: PreparedDataset, experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    space = {"model.num_heads": {"choices": [3]}}
    with pytest.raises(InputError, match="tune: none of the trials of walks-.* has finished"):
        tune(experiment, dataset, make_search(space=space, trials=2))
    assert "trial 0: tune: model.num_heads: must divide" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "model.dropuot",
            "tune: space: model.dropuot: walks has no such field; did you mean 'model.dropout'",
        ),
        ("evaluation.seen", "tune: space: evaluation.seen: walks has no such field"),
    ],
)
def test_unknown_fields_are_refused(
    name: str, message: str, dataset: PreparedDataset, experiment: Experiment
) -> None:
    with pytest.raises(InputError, match=message):
        tune(experiment, dataset, make_search(space={name: {"low": 0.0, "high": 0.1}}))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"space": {}}, "space: "),
        ({"space": SPACE, "trials": None}, "give trials, minutes or both"),
        ({"space": {"model.dropout": {"low": 0.3, "high": 0.1}}}, "low must be below high, 0.1"),
        ({"space": {"model.dropout": {"low": 0, "high": 1, "log": True}}}, "low must be above 0"),
        ({"space": SPACE, "trails": 3}, "trails: unknown key; did you mean 'trials'?"),
    ],
)
def test_mistakes_in_the_search_are_reported(
    tree: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tune.yaml"
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError) as error:
        load_section(path, Search)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_writes_a_config_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WALKS.write_csv("walks.csv")
    model, data = {"embedding_dim": 8, "feed_forward_dim": 8}, {"source": "walks.csv"}
    tree = {"name": "walks", "data": data, "model": model, "training": {"max_epochs": 1}}
    Path("walks.yaml").write_text(yaml.safe_dump(tree))
    Path("search.yaml").write_text(yaml.safe_dump({"space": SPACE, "trials": 9}))
    (row,) = run_json("tune", "walks.yaml", "--search", "search.yaml", "--trials", 2)
    assert row["trials"] == 2
    best = load_experiment(row["config"])
    assert best.name == "walks-tuned"
    assert best.model.embedding_dim == 8
    assert Path("optuna.db").exists()
    assert not Path("mlflow.db").exists()


def test_the_shipped_search_fits_the_shipped_configs() -> None:
    configs = Path(__file__).parents[2] / "configs"
    fields = flatten(load_experiment(configs / "ml-1m.yaml"))
    assert set(load_section(configs / "tune.yaml", Search).space) <= set(fields)
