"""Ranks and lists of one pass over the users equal those of two passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

from recsys.baselines.popularity import RepeatCounts
from recsys.config import DataConfig, EvaluationConfig, LeaveLastOut
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import evaluate_held_out, find_holdout
from recsys.evaluation.tables import evaluate
from recsys.inference import scorer as scorer_module
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Blend, Scored, Scorer


class CountingScorer:
    """A scorer by the last item that counts the histories it scored."""

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


@pytest.mark.parametrize("users", [1, 2, 64])
def test_one_pass_equals_two_passes(
    users: int, tiny_dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_module, "FEWEST_USERS", users)
    monkeypatch.setattr(scorer_module, "ELEMENTS_PER_BATCH", 1)
    scorer, config = CountingScorer(), EvaluationConfig(cutoffs=(1, 3))
    holdout = find_holdout(tiny_dataset, "test", "unknown")
    found = evaluate_held_out(scorer, tiny_dataset, holdout, "test", config, None)
    assert scorer.num_scored == len(holdout.histories)
    expected = evaluate(scorer, holdout, "test", config.seen)
    assert found.ranks.ranks.tolist() == expected.ranks.tolist()
    assert found.ranks.protocol == expected.protocol
    assert np.array_equal(found.best.items, top_k(scorer, holdout.histories, 3, config.seen)[0])


def test_what_is_added_is_ranked_in_the_same_pass(tiny_dataset: PreparedDataset) -> None:
    scorer, config = CountingScorer(), EvaluationConfig(cutoffs=(1, 3), seen="allow")
    holdout = find_holdout(tiny_dataset, "test", "unknown")
    counts = RepeatCounts(scorer.num_items)

    def added(model: Scorer) -> Scorer:
        return Blend.of([(model, 1.0), (counts, 2.0)])

    found = evaluate_held_out(scorer, tiny_dataset, holdout, "test", config, None, added)
    assert scorer.num_scored == len(holdout.histories)
    alone = evaluate_held_out(scorer, tiny_dataset, holdout, "test", config, None)
    both = evaluate_held_out(added(scorer), tiny_dataset, holdout, "test", config, None)
    assert found.alone is not None
    assert found.alone.frame.equals(alone.ranks.frame)
    assert found.ranks.frame.equals(both.ranks.frame)
    assert found.best.frame.equals(both.best.frame)
    assert alone.alone is None
    assert not found.best.frame.equals(alone.best.frame)


def test_scores_of_other_users_are_refused() -> None:
    made = Scored(torch.zeros(2, 6))
    with pytest.raises(ValueError, match="scores of 2 users, not of 1"):
        made.score(Histories.from_lists([[1]]))


def test_targets_of_one_history_cannot_have_known_request_times(
    tiny_log: pl.DataFrame, tmp_path: Path
) -> None:
    split = LeaveLastOut(targets=2)
    dataset = prepare(tiny_log, DataConfig(split=split, duplicates="keep"), tmp_path / "tiny")
    find_holdout(dataset, "test", "unknown")
    with pytest.raises(InputError, match=r"request_time=known: .* several test targets after one"):
        find_holdout(dataset, "test", "known")


@pytest.mark.parametrize(
    ("targets", "remedy"),
    [
        (1, "needs 3 of known items: prepare it with longer histories or --set data.split=global"),
        (2, "needs 5 of known items: prepare it with longer histories, a smaller data.split.tar"),
    ],
)
def test_a_split_without_targets_says_how_long_histories_are_and_what_to_do(
    tmp_path: Path, targets: int, remedy: str
) -> None:
    rows = [("ann", "hat", 1), ("bob", "hat", 1), ("bob", "boots", 2), ("cat", "boots", 3)]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    config = DataConfig(split=LeaveLastOut(targets=targets))
    dataset = prepare(log, config, tmp_path / "data")
    with pytest.raises(InputError) as caught:
        find_holdout(dataset, "valid", "unknown")
    assert "of 3 users, 2 have 1, 1 have 2, 0 have more interactions" in str(caught.value)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)
