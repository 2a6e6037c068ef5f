"""Lists of next purchases: made for every user with targets, and saved with every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from mlflow import MlflowClient

from recsys.baselines.popularity import Popularity
from recsys.config import (
    DataConfig,
    Experiment,
    LeaveLastBasketOut,
    LeaveLastOut,
    Split,
    parse_experiment,
)
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import evaluate_lists, next_list_length
from recsys.evaluation.tables import NextListTable
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.fit import fit
from recsys.inference.generator import SequenceGenerator
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import top_k
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.serving.bundle import ModelBundle

NEXT_TWO = [f"next_{name}_at_2" for name in ("recall", "ndcg", "f1", "ordered_recall")]
TINY = {"embedding_dim": 8, "feed_forward_dim": 8, "max_sequence_length": 6}


def dataset_of(folder: Path, split: Split, users: int = 12, items: int = 8) -> PreparedDataset:
    """Each user buys items in cyclic order from an own start: six purchases, two at a time."""
    rows = [(user, (user + step) % items, step // 2) for user in range(users) for step in range(6)]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    return prepare(log, DataConfig(split=split), folder / "data")


def experiment_of(folder: Path, model: dict[str, Any]) -> Experiment:
    return parse_experiment(
        {
            "name": "run",
            "model": model,
            "training": {"max_epochs": 1},
            "evaluation": {"seen": "allow", "cutoffs": [2]},
            "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
        }
    )


@pytest.mark.parametrize(
    ("split", "items", "length"),
    [
        (LeaveLastOut(), 8, None),
        (LeaveLastOut(targets=2), 8, 2),
        (LeaveLastBasketOut(), 8, 8),
        (LeaveLastBasketOut(), 20, 10),
    ],
)
def test_the_split_determines_the_length_of_lists(
    split: Split, items: int, length: int | None, tmp_path: Path
) -> None:
    assert next_list_length(dataset_of(tmp_path, split, users=20, items=items)) == length


def test_a_scorer_lists_its_best_items_for_every_user(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, LeaveLastOut(targets=2), users=3)
    # Users 0, 1 and 2 have bought item tokens 1 to 4, 2 to 5 and 3 to 6, and buy the next two.
    scorer = Popularity(np.arange(dataset.num_items + 1, dtype=np.float64))
    table = evaluate_lists({"own": scorer}, dataset, "test", "filter")["own"]
    assert dataset.num_items == 6
    assert table.frame.to_dict(as_series=False) == {
        "user": [0, 1],  # all that user 2 buys is outside the catalogue
        "generated": [[6, 5], [6, 1]],
        "targets": [[5, 6], [6]],
    }
    assert table.protocol.dropped == 3


@pytest.mark.slow
def test_one_target_per_user_needs_no_lists(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, LeaveLastOut())
    experiment = experiment_of(tmp_path, TINY)
    assert evaluate_lists({"own": Popularity(np.zeros(9))}, dataset, "test", "allow") == {}
    run = fit(experiment, dataset, tmp_path / "out")
    assert not (tmp_path / "out" / "lists_test.parquet").exists()
    for run_id in (run.run_id, fit_baseline("popularity", experiment, dataset)):
        assert not [name for name in logged(experiment, run_id) if "next" in name]


@pytest.mark.parametrize("split", [LeaveLastOut(targets=2), LeaveLastBasketOut()], ids=str)
def test_a_baseline_logs_its_lists(split: Split, tmp_path: Path) -> None:
    dataset, experiment = dataset_of(tmp_path, split), experiment_of(tmp_path, TINY)
    run_id = fit_baseline("markov", experiment, dataset)
    client = MlflowClient(experiment.tracking.absolute_uri)
    table = NextListTable.load(client.download_artifacts(run_id, "lists_test.parquet"))
    metrics = logged(experiment, run_id)
    for name, interval in table.summary().items():
        assert metrics[f"test/{name}"] == interval.mean
        assert metrics[f"test/{name}_high"] == interval.high
    assert metrics["test/recall_at_2"] > 0
    assert client.get_run(run_id).data.tags["protocol.split"] == str(split)


def test_a_model_of_the_next_item_lists_its_best_items(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, LeaveLastOut(targets=2))
    experiment = experiment_of(tmp_path, TINY)
    run = fit(experiment, dataset, tmp_path / "out")
    table = NextListTable.load(tmp_path / "out" / "lists_test.parquet")
    assert table.protocol.length == 2
    assert table.frame["user"].to_list() == list(range(12))
    assert {name: run.test[name] for name in NEXT_TWO}.items() <= table.summary().items()
    metrics = logged(experiment, run.run_id)
    assert metrics["test/next_recall_at_2"] == run.test["next_recall_at_2"].mean
    again = fit(experiment, dataset, tmp_path / "out")  # the table is not foreign to the folder
    assert again.test == run.test


def test_a_generative_model_is_evaluated_by_its_generated_lists(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, LeaveLastOut(targets=2))
    experiment = experiment_of(
        tmp_path, {**TINY, "kind": "sequence_to_sequence", "max_generated": 3}
    )
    run = fit(experiment, dataset, tmp_path / "out")
    table = NextListTable.load(tmp_path / "out" / "lists_test.parquet")
    model = ModelBundle.open(run.bundle).model
    assert isinstance(model, SequenceToSequence)
    histories = dataset.next_purchases("test").histories
    generated, _ = SequenceGenerator(model, 6).generate(histories, 2, "allow")
    assert table.frame["generated"].to_list() == generated.tolist()
    assert run.test["next_recall_at_2"] == table.summary()["next_recall_at_2"]
    # The list without generation is saved as well.
    best = NextListTable.load(tmp_path / "out" / "lists_best_test.parquet")
    items, _ = top_k(ModelScorer(model, 6), histories, 2, "allow")
    assert best.frame["generated"].to_list() == items.tolist()
    metrics = logged(experiment, run.run_id)
    assert metrics["test/best_next_recall_at_2"] == best.summary()["next_recall_at_2"].mean


def test_a_model_that_generates_too_few_items_is_not_trained(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, LeaveLastOut(targets=2))
    experiment = experiment_of(
        tmp_path, {**TINY, "kind": "sequence_to_sequence", "max_generated": 1}
    )
    with pytest.raises(
        InputError, match=r"^model\.max_generated=1: must be at least 2, the length"
    ):
        fit(experiment, dataset, tmp_path / "out")
    assert not (tmp_path / "mlflow.db").exists()


def test_a_split_without_targets_is_refused_before_training(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, LeaveLastOut(targets=3))
    with pytest.raises(InputError, match="leave_last_out of 3 leaves no valid targets"):
        fit(experiment_of(tmp_path, TINY), dataset, tmp_path / "out")


def logged(experiment: Experiment, run_id: str) -> dict[str, float]:
    run = MlflowClient(experiment.tracking.absolute_uri).get_run(run_id)
    metrics: dict[str, float] = run.data.metrics
    return metrics
