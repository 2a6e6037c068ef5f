"""Held-out targets are ranked and listed in one pass; lists of next purchases are evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from mlflow import MlflowClient
from numpy.typing import NDArray

from recsys.baselines.counts import Popularity, RepeatCounts
from recsys.config.data import DataConfig, LeaveLastBasketOut, LeaveLastOut, Split
from recsys.config.experiment import EvaluationConfig, Experiment
from recsys.config.files import parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.held_out import (
    evaluate_held_out,
    evaluate_lists,
    find_holdout,
    next_list_length,
)
from recsys.evaluation.tables import NextListTable, evaluate
from recsys.experiments.fit import fit
from recsys.inference import scorer as scorer_module
from recsys.inference.model_scorer import ModelScorer, generate_lists
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Blend, Scorer
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.serving.bundle import ModelBundle


class CountingScorer:
    num_items = 5

    def __init__(self) -> None:
        self.num_scored = 0

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        self.num_scored += len(histories)
        last = torch.from_numpy(histories.items[histories.offsets[1:] - 1].astype(np.int64))
        scores = torch.sin(last[:, None] * torch.arange(6.0))
        scores[:, 0] = -torch.inf
        return scores


def scores_of(scorer: Scorer) -> Callable[[Holdout], torch.Tensor]:
    return lambda some: scorer.score(some.histories)


@pytest.mark.parametrize("users", [1, 2, 64])
def test_one_pass_equals_two_passes(
    users: int, tiny_dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_module, "FEWEST_USERS", users)
    monkeypatch.setattr(scorer_module, "ELEMENTS_PER_BATCH", 1)
    scorer, config = CountingScorer(), EvaluationConfig(cutoffs=(1, 3))
    holdout = find_holdout(tiny_dataset, "test", "unknown")
    tables, _ = evaluate_held_out(scores_of(scorer), tiny_dataset, holdout, config, None)
    assert scorer.num_scored == len(holdout.histories)
    expected = evaluate(scorer, holdout, "test", config.seen)
    assert tables["ranks_test"].frame["rank"].to_list() == expected.frame["rank"].to_list()
    assert tables["ranks_test"].protocol == expected.protocol
    best, _ = top_k(scorer, holdout.histories, 3, config.seen)
    assert tables["topk_test"].frame["items"].to_list() == best.tolist()


def test_what_is_added_is_ranked_in_the_same_pass(tiny_dataset: PreparedDataset) -> None:
    scorer, config = CountingScorer(), EvaluationConfig(cutoffs=(1, 3), seen="allow")
    holdout = find_holdout(tiny_dataset, "test", "unknown")
    counts = RepeatCounts(scorer.num_items)

    def added(model: Scorer) -> Scorer:
        return Blend.of([(model, 1.0), (counts, 2.0)])

    def evaluated(scorer: Scorer, *added: Callable[[Scorer], Scorer]) -> dict[str, pl.DataFrame]:
        scores = scores_of(scorer)
        tables, _ = evaluate_held_out(scores, tiny_dataset, holdout, config, None, *added)
        return {name: table.frame for name, table in tables.items()}

    found = evaluated(scorer, added)
    assert scorer.num_scored == len(holdout.histories)
    alone, both = evaluated(scorer), evaluated(added(scorer))
    assert found["ranks_test_model_alone"].equals(alone["ranks_test"])
    assert found["ranks_test"].equals(both["ranks_test"])
    assert found["topk_test"].equals(both["topk_test"])
    assert alone.keys() == {"ranks_test", "topk_test"}
    assert not found["topk_test"].equals(alone["topk_test"])


def test_targets_of_one_history_cannot_have_known_request_times(
    tiny_log: pl.DataFrame, tmp_path: Path
) -> None:
    split = LeaveLastOut(targets=2)
    dataset = prepare(tiny_log, DataConfig(split=split, duplicates="keep"), tmp_path / "tiny")
    find_holdout(dataset, "test", "unknown")
    with pytest.raises(InputError, match=r"request_time=known: .* several test targets after one"):
        find_holdout(dataset, "test", "known")
    baskets = tiny_log.with_columns(pl.col("timestamp") // 2)
    dataset = prepare(baskets, DataConfig(split=LeaveLastBasketOut()), tmp_path / "baskets")
    assert len(find_holdout(dataset, "test", "known").targets) > 1  # of one time each


# --- Lists of next purchases ----------------------------------------------------------------------

NEXT_TWO = [f"next_{name}_at_2" for name in ("recall", "ndcg", "f1", "ordered_recall")]
TINY = {"embedding_dim": 8, "feed_forward_dim": 8, "max_sequence_length": 6}


def dataset_of(folder: Path, split: Split, users: int = 12, items: int = 8) -> PreparedDataset:
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
    table = evaluate_lists({"own": scorer}, dataset, "filter")["own"]
    assert dataset.num_items == 6
    assert table.frame.to_dict(as_series=False) == {
        "user": [0, 1],  # all that user 2 buys is outside the catalogue
        "generated": [[6, 5], [6, 1]],
        "targets": [[5, 6], [6]],
    }
    assert table.protocol.dropped == 3


def test_a_generative_model_is_evaluated_by_its_generated_lists(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, LeaveLastOut(targets=2))
    experiment = experiment_of(
        tmp_path, {**TINY, "kind": "sequence_to_sequence", "max_generated": 3}
    )
    run = fit(experiment, dataset, tmp_path / "out")
    table = NextListTable.load(tmp_path / "out" / "lists_test.parquet")
    model = ModelBundle.open(run.bundle).model
    assert isinstance(model, SequenceToSequence)
    histories = dataset.holdout("test").histories
    generated, _ = generate_lists(model, 6, histories, 2, "allow")
    assert table.frame["generated"].to_list() == generated.tolist()
    assert run.test["next_recall_at_2"] == table.summary()["next_recall_at_2"]
    # The list without generation is saved as well.
    best = NextListTable.load(tmp_path / "out" / "lists_best_test.parquet")
    items, _ = top_k(ModelScorer(model, 6), histories, 2, "allow")
    assert best.frame["generated"].to_list() == items.tolist()
    metrics = logged(experiment, run.run_id)
    assert metrics["test/best_next_recall_at_2"] == best.summary()["next_recall_at_2"].mean


def logged(experiment: Experiment, run_id: str) -> dict[str, float]:
    run = MlflowClient(experiment.tracking.absolute_uri).get_run(run_id)
    metrics: dict[str, float] = run.data.metrics
    return metrics
