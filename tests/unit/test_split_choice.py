"""The split of an automatic run whose users have few interactions each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import recsys
from recsys.automatic.split_choice import choose_split
from recsys.config import DataConfig, GlobalTime, Split
from recsys.data.preparation import write_dataset
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError


def buyers(users: int) -> pl.DataFrame:
    """Return users with two purchases each, at any time; the first tells the second."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 12, users)
    return pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(users), 2),
            "item_id": np.stack([first, (first + 5) % 12], axis=1).ravel(),
            "timestamp": np.sort(rng.integers(0, 10**7, (users, 2)), axis=1).ravel(),
        }
    )


def chosen(lengths: list[int], times: NDArray[np.int64] | None = None) -> Split | None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if times is None:
        rng = np.random.default_rng(0)
        times = np.concatenate([np.sort(rng.integers(0, 10**7, n)) for n in lengths])
    return choose_split(times, offsets)


@pytest.mark.parametrize(
    "lengths",
    [
        [2] * 2_000,
        [3] * 2_000,  # with two held out there is no pair to learn from
        [2] * 2_000 + [20] * 50,
        [2] * 2_000 + [5_000],  # a test account
        [1] * 500 + [2] * 2_000,
        [2] * 20_000 + [4] * 110,  # more than a hundred, but few of them
    ],
)
def test_users_with_few_interactions_are_split_by_date(lengths: list[int]) -> None:
    assert chosen(lengths) == GlobalTime()


@pytest.mark.parametrize(
    ("lengths", "times"),
    [
        ([2] * 2_000 + [4] * 100, None),  # enough have four
        ([2] * 30 + [4] * 10, None),  # few, but the log is small
        ([2] * 2_000, np.tile([0, 1], 2_000)),  # the number of the interaction
        ([2] * 2_000, np.arange(4_000)),  # the number of the row
        ([2] * 2_000, np.repeat([5, 7], 2_000)),  # two moments
        ([1] * 2_000, None),
    ],
)
def test_the_usual_split_stays(lengths: list[int], times: NDArray[np.int64] | None) -> None:
    assert chosen(lengths, times) is None


def test_a_run_says_which_split_it_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = recsys.fit(buyers(1_500), time_limit=10, preset="fast")
    assert model.dataset is not None
    assert model.dataset.config.split == GlobalTime()
    page = model.report().read_text(encoding="utf-8")
    assert "data.split" in page
    assert "0 of 1,500 users have 4 interactions" in page


@pytest.mark.parametrize("memory", [None, 40_000])
def test_a_log_is_read_once_in_memory_or_part_by_part(
    memory: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "purchases.csv"
    buyers(1_500).rename({"user_id": "customer", "item_id": "sku", "timestamp": "ts"}).write_csv(
        log
    )
    out = tmp_path / "purchases"
    with caplog.at_level("INFO"):
        write_dataset(str(log), DataConfig(), out, memory=memory, choose_split=choose_split)
    assert PreparedDataset.open(out).config.split == GlobalTime()
    assert len([line for line in caplog.messages if "customer" in line]) == 1
    by_hand = tmp_path / "by-hand"
    write_dataset(str(log), DataConfig(split=GlobalTime()), by_hand)
    assert PreparedDataset.open(by_hand).fingerprint == PreparedDataset.open(out).fingerprint


def test_a_split_that_was_asked_for_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="leaves no valid targets"):
        recsys.fit(buyers(1_500), split="leave_last_out", time_limit=10, preset="fast")
