"""The split of an automatic run whose users have few interactions each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import recsys
from recsys.automatic.split_choice import choose_split
from recsys.config import GlobalTime, LeaveLastOut
from recsys.data.prepared import prepare
from recsys.errors import InputError


def buyers(two: int, three: int = 0, *, dated: bool = True) -> pl.DataFrame:
    """Return users with two purchases, and others with three, at any time or numbered."""
    rng = np.random.default_rng(0)
    lengths = [2] * two + [3] * three
    times = [np.sort(rng.integers(0, 10**7, n)) if dated else np.arange(n) for n in lengths]
    first = rng.integers(0, 12, len(lengths))
    items = [(first[user] + 5 * np.arange(n)) % 12 for user, n in enumerate(lengths)]
    return pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(len(lengths)), lengths),
            "item_id": np.concatenate(items),
            "timestamp": np.concatenate(times),
        }
    )


def test_users_with_two_interactions_are_split_by_date(tmp_path: Path) -> None:
    choice = choose_split(prepare(buyers(two=300), out=tmp_path / "data"))
    assert choice is not None
    assert (choice.setting, choice.value) == ("data.split", "global_time")
    assert choice.reason.startswith("0 of 300 users have the three interactions")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (buyers(two=300, three=100), {}),  # enough have three
        (buyers(two=20, three=20), {}),  # few, but the log is small
        (buyers(two=300, dated=False), {}),  # numbers of each user are no dates
        (buyers(two=300), {"split": {"kind": "global_time", "test_fraction": 0.2}}),
        (buyers(two=300), {"split": LeaveLastOut(targets=2)}),
    ],
)
def test_the_usual_split_stays(log: pl.DataFrame, words: dict[str, Any], tmp_path: Path) -> None:
    assert choose_split(prepare(log, out=tmp_path / "data", **words)) is None


def test_a_run_says_which_split_it_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = recsys.fit(buyers(two=300), time_limit=10, preset="fast")
    assert model.dataset is not None
    assert model.dataset.config.split == GlobalTime()
    page = model.report().read_text(encoding="utf-8")
    assert "data.split" in page
    assert "0 of 300 users have the three interactions" in page


def test_a_split_that_was_asked_for_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="leaves no valid targets"):
        recsys.fit(buyers(two=300), split="leave_last_out", time_limit=10, preset="fast")
