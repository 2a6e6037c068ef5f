"""Segments of targets: by hand from a log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recsys.baselines.counts import Popularity
from recsys.config.data import ChosenTargets, DataConfig, GlobalTime, KnownHistory
from recsys.data.prepared import PreparedDataset, prepare
from recsys.evaluation.held_out import with_segments
from recsys.evaluation.tables import RankTable, evaluate
from tests.helpers.logs import log_of, log_of_histories


def ranked(dataset: PreparedDataset) -> RankTable:
    scorer = Popularity(np.arange(dataset.num_items + 1, dtype=np.float64))
    holdout = dataset.holdout("test")
    return with_segments(evaluate(scorer, holdout, "test", "allow"), dataset, holdout)


@pytest.fixture
def dataset(tmp_path: Path) -> PreparedDataset:
    """Histories of 2, 5 and 12 items before one target each."""
    bought = {
        "a": [("x", 0), ("y", 5), ("x", 15)],  # a repeat
        "b": [("x", 0), ("y", 1), ("x", 2), ("w", 3), ("only-b", 4), ("z", 5)],
        "c": [("z", t) for t in range(11)] + [("only-c", 99), ("w", 110)],
        "d": [("x", 0), ("never-known", 7)],
    }
    log = log_of((user, item, time) for user, items in bought.items() for item, time in items)
    return prepare(log, out=tmp_path / "data")


def test_segments_by_hand(dataset: PreparedDataset) -> None:
    frame = ranked(dataset).frame
    assert frame["user"].to_list() == [0, 1, 2]
    assert frame["history"].to_list() == ["1-4", "5-9", "10-19"]
    assert frame["purchase"].to_list() == ["repeat", "new", "new"]
    # Popularity of only-b, only-c, w, x, y, z: 1, 1, 1, 4, 2, 11.
    assert frame["popularity_decile"].to_list() == [2, 1, 9]
    assert frame.columns[4:] == ["history", "purchase", "popularity_decile"]


@pytest.mark.parametrize(
    ("chosen", "known", "rows"),
    [
        ("every", "frozen", [(3, "1-4", "new"), (1, "1-4", "repeat")]),
        ("every", "advancing", [(3, "1-4", "new"), (1, "5-9", "repeat")]),
        ("last", "advancing", [(1, "5-9", "repeat")]),
    ],
)
def test_segments_follow_the_targets_of_the_split(
    chosen: ChosenTargets, known: KnownHistory, rows: list[tuple[int, str, str]], tmp_path: Path
) -> None:
    log = log_of_histories({"a": [1, 2, 1, 2, 3, 1], "b": [3]})
    split = GlobalTime(valid_from=2, test_from=4, targets=chosen, history=known)
    frame = ranked(prepare(log, DataConfig(split=split), tmp_path / "data")).frame
    assert frame.select("target", "history", "purchase").rows() == rows
