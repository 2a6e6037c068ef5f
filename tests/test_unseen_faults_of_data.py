"""Splits, appends and comparisons, judged by hand where a small fault would go unnoticed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import recsys
from recsys import PreparedDataset
from recsys.reports.statistics import paired_difference
from tests.small_models import HISTORIES, LOG, train

if TYPE_CHECKING:
    from recsys.experiments.results import Run

# --- Splits --------------------------------------------------------------------------------------


def test_the_cuts_in_time_are_those_of_all_users(tmp_path: Path) -> None:
    """Early users come first, and there are more interactions than are read at a time."""
    users, length = 2_300, 500
    numbers = np.arange(users * length)
    log = pl.DataFrame({"user_id": numbers // length, "item_id": numbers % 7, "timestamp": numbers})
    split = {"kind": "global_time", "test_fraction": 0.2, "valid_fraction": 0.1}
    data = recsys.prepare(log, out=tmp_path / "data", split=split)
    first_test, first_valid = round(0.8 * len(log)), round(0.7 * len(log))
    ends = np.clip(np.array([first_valid, first_test]) - data.offsets[:-1, None], 0, length)
    np.testing.assert_array_equal(data.cuts[:, :2], ends)


@pytest.mark.parametrize("kind", ["global_time", "user_holdout"])
def test_both_fractions_are_of_the_whole_log(tmp_path: Path, kind: str) -> None:
    numbers = np.arange(1_000)
    log = pl.DataFrame({"user_id": numbers % 100, "item_id": numbers % 7, "timestamp": numbers})
    split = {"kind": kind, "test_fraction": 0.4, "valid_fraction": 0.3}
    data = recsys.prepare(log, out=tmp_path / "data", split=split)
    counts = data.manifest.counts
    assert [counts[part] for part in ("train", "valid", "test")] == [300, 300, 400]


# --- Growth --------------------------------------------------------------------------------------


def purchases(histories: dict[str, str], time: int) -> pl.DataFrame:
    """A log of items that are letters, from this time on."""
    rows = [
        (user, item, time + n) for user, items in histories.items() for n, item in enumerate(items)
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def items_of(data: PreparedDataset) -> dict[str, list[str | None]]:
    """The items of each user, oldest first; None for those outside the catalogue."""
    table = data.interaction_table.group_by("user_id", maintain_order=True).agg("item_id")
    return dict(table.sort("user_id").iter_rows())


def test_items_outside_the_catalogue_keep_their_ids_when_logs_are_appended(tmp_path: Path) -> None:
    """Capital letters are test targets alone at first. New users sort before known ones."""
    logs = [
        purchases({"dan": "abcZ", "eve": "bcaX", "fay": "cabY"}, time=0),
        purchases({"ann": "abT", "dan": "aS", "fay": "bW"}, time=10),
        purchases({"ann": "ca", "bob": "acR", "dan": "bc", "fay": "cQ"}, time=20),
    ]
    data = recsys.prepare(logs[0], out=tmp_path / "grown")
    assert items_of(data) == {"dan": [*"abc", None], "eve": [*"bca", None], "fay": [*"cab", None]}
    for count, log in enumerate(logs[1:], 2):
        data = recsys.append(log, data.path)
        whole = recsys.prepare(pl.concat(logs[:count]), out=tmp_path / f"whole-{count}")
        assert items_of(data) == items_of(whole)
    assert items_of(data) == {
        "ann": [*"abTca"],
        "bob": [*"ac", None],
        "dan": [*"abcZaSbc"],
        "eve": [*"bca", None],
        "fay": [*"cabYbWc", None],
    }


# --- Comparisons ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return recsys.prepare(LOG, out=tmp_path_factory.mktemp("compared") / "data")


@pytest.fixture(scope="module")
def runs(data: PreparedDataset) -> dict[str, Run]:
    changes = {
        "first": [],
        "second": ["seed=1"],
        "faster": ["training.learning_rate=0.2"],
        "counting": ["count_ensemble={}"],
    }
    return {name: train(data, name, *change) for name, change in changes.items()}


def ndcg(run: Run) -> NDArray[np.float64]:
    """NDCG@10 of each user, who has one target."""
    ranks = pl.read_parquet(run.bundle.parent / "ranks_test.parquet")["rank"].to_numpy()
    return np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)


def test_pooled_runs_are_tested_by_the_means_of_their_seeds(runs: dict[str, Run]) -> None:
    seeds = [runs["first"], runs["second"], runs["faster"]]
    compared = recsys.compare(seeds, pooled=True).rows[1].differences["ndcg_at_10"]
    pooled = (ndcg(runs["first"]) + ndcg(runs["second"])) / 2
    assert compared == paired_difference(ndcg(runs["faster"]), pooled)


def test_an_item_bought_for_validation_is_a_repeat_in_the_test(runs: dict[str, Run]) -> None:
    ranks = pl.read_parquet(runs["first"].bundle.parent / "ranks_test.parquet")
    repeats = [items[-1] in items[:-1] for items in HISTORIES.values()]
    assert repeats != [items[-1] in items[:-2] for items in HISTORIES.values()]
    assert (ranks["purchase"] == "repeat").to_list() == repeats
