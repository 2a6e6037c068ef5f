"""Splits: cut points by hand, no future and no held-out user in training, and what is held out."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.config.data import (
    Backtest,
    DataConfig,
    GlobalTime,
    LeaveLastBasketOut,
    LeaveLastOut,
    Split,
    UserHoldout,
)
from recsys.config.files import parse_experiment
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset, prepare
from recsys.data.splits import (
    cut_points,
    find_targets,
    kth_latest,
    leave_last_basket_out,
    leave_last_out,
)
from recsys.errors import InputError
from tests.helpers.logs import log_of

PARTS: tuple[Part, ...] = get_args(Part)

# Two users: times 1 4 5 9, and 5 8.
TIMES, OFFSETS = np.array([1, 4, 5, 9, 5, 8]), np.array([0, 4, 6])

# Validation starts at 4, test at 6: item 9 is only a test target, c only a test user.
LOG = log_of(
    [
        *[("a", 1, 1), ("a", 2, 2), ("a", 3, 4)],
        *[("a", 1, 6), ("a", 2, 6), ("a", 9, 7), ("a", 3, 8)],
        *[("b", 3, 1), ("b", 1, 5), ("b", 9, 6)],
        *[("c", 2, 6), ("c", 3, 7)],
    ]
)
DATES: dict[str, Any] = {
    "valid_from": "2024-01-04",
    "test_from": "2024-01-06T00:00:00",
    "test_until": "2024-01-08",
}

# With leave_last_basket_out, item 9 occurs only as a test target.
BASKETS = log_of(
    [
        *[("a", 5, 1), ("a", 3, 2), ("a", 5, 2), ("a", 9, 3), ("a", 5, 3)],
        *[("b", 3, 1), ("b", 7, 2), ("b", 3, 2)],
        *[("c", 7, 1), ("c", 3, 1), ("d", 7, 1), ("d", 9, 2)],
    ]
)


def days(units: int) -> pl.DataFrame:
    """The log with a day for each time, as an epoch with so many units in a second."""
    since_1970 = 19_722 + pl.col("timestamp")
    return LOG.with_columns(timestamp=since_1970 * 86_400 * units)


def split_log(
    split: Split, folder: Path, log: pl.DataFrame = LOG, **config: Any
) -> PreparedDataset:
    return prepare(log, DataConfig(split=split, **config), folder / "out")


def lists(histories: Histories) -> list[list[int]]:
    return [histories[b : b + 1].items.tolist() for b in range(len(histories))]


ascending_times = st.lists(
    st.lists(st.integers(-3, 9), min_size=1, max_size=12).map(sorted), min_size=1, max_size=8
)


def flat(times: list[list[int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.array([*chain(*times)], dtype=np.int64), np.cumsum([0, *map(len, times)])


@pytest.mark.parametrize(
    ("targets", "lengths", "expected"),
    [
        (1, [1, 2, 3, 4, 100], [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [98, 99, 100]]),
        (  # too few to hold out five; one left for training; too few for validation
            5,
            [1, 5, 6, 10, 11, 100],
            [[1, 1, 1], [5, 5, 5], [1, 1, 6], [5, 5, 10], [1, 6, 11], [90, 95, 100]],
        ),
        (3, [], np.empty((0, 3)).tolist()),
    ],
)
def test_leave_last_out_by_hand(targets: int, lengths: list[int], expected: Any) -> None:
    cuts = leave_last_out(np.array(lengths, dtype=np.int64), targets)
    assert cuts.tolist() == expected
    assert cuts.dtype == np.int32
    assert cuts.shape == (len(lengths), 3)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        # A single basket of any size is for training.
        ([[7], [7, 7, 7], [1, 2]], [[1, 1, 1], [3, 3, 3], [1, 1, 2]]),
        ([[1, 1, 2, 2, 2], [1, 2, 3], [1, 1, 4, 5, 5]], [[2, 2, 5], [1, 2, 3], [2, 3, 5]]),
        # Two users at the same time share no basket.
        ([[1, 2, 3], [3, 4, 5], [5]], [[1, 2, 3], [1, 2, 3], [1, 1, 1]]),
        ([], np.empty((0, 3)).tolist()),
    ],
)
def test_leave_last_basket_out_by_hand(times: list[list[int]], expected: Any) -> None:
    cuts = leave_last_basket_out(*flat(times))
    assert cuts.tolist() == expected
    assert cuts.dtype == np.int32


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (GlobalTime(valid_from=5, test_from=8), [[2, 3, 4], [0, 1, 2]]),
        (GlobalTime(test_fraction=1 / 3, valid_fraction=1 / 3), [[2, 3, 4], [0, 1, 2]]),
        # Half of the rows would separate the two at time 5, so both are in test.
        (GlobalTime(test_fraction=1 / 2, valid_fraction=1 / 6), [[1, 2, 4], [0, 0, 2]]),
        (GlobalTime(valid_from="1970-01-01T00:00:05", test_from=8), [[2, 3, 4], [0, 1, 2]]),
    ],
    ids=str,
)
def test_global_time_by_hand(split: GlobalTime, expected: list[list[int]]) -> None:
    assert cut_points(split, TIMES, OFFSETS).tolist() == expected


NO_TEST = "no test interactions.*times run from 1 to 9"


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (GlobalTime(test_from=10), NO_TEST),
        (GlobalTime(valid_from=1, test_from=9), NO_TEST),
        (GlobalTime(valid_from=6, test_from=4), NO_TEST),
        (GlobalTime(test_fraction=0.9, valid_fraction=0.9), NO_TEST),
        # Six rows for validation and one for test are more than the six there are.
        (GlobalTime(test_fraction=1 / 6, valid_fraction=0.99), NO_TEST),
        (Backtest(), "recsys backtest"),
        (UserHoldout(), "of 2 users 1 are for validation and 1 for test"),
    ],
    ids=str,
)
def test_a_split_that_leaves_an_empty_part_is_refused(split: Split, words: str) -> None:
    with pytest.raises(InputError, match=words):
        cut_points(split, TIMES, OFFSETS)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("{kind: global_time, test_from: soon}", "a number or an ISO 8601 date, not 'soon'"),
        ("random", "the kind must be 'leave_last_out', 'leave_last_basket_out', 'global_time'"),
    ],
)
def test_wrong_splits(split: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment({}, [f"data.split={split}"])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("high", [3, 100_000, 2**63 - 1])
def test_the_kth_latest_of_any_times(high: int) -> None:
    times = np.random.default_rng(0).integers(-high, high, size=500)
    times[7] = -high
    for k in (1, 2, 50, 499, 500):
        assert kth_latest(times, k) == np.sort(times)[-k]


@pytest.mark.parametrize(
    ("targets", "history", "expected", "without"),
    [
        ("first", "frozen", [(0, 1, [1, 2, 3])], 1),
        ("last", "frozen", [(0, 3, [1, 2, 3])], 1),
        ("last", "advancing", [(0, 3, [1, 2, 3, 1, 2]), (2, 3, [2])], 0),
        ("every", "frozen", [(0, 1, [1, 2, 3]), (0, 2, [1, 2, 3]), (0, 3, [1, 2, 3])], 2),
        (
            "every",
            "advancing",
            # The purchases at time 6 are not in one another's history.
            [(0, 1, [1, 2, 3]), (0, 2, [1, 2, 3]), (0, 3, [1, 2, 3, 1, 2]), (2, 3, [2])],
            1,
        ),
    ],
)
def test_targets_and_histories_by_hand(
    targets: Any, history: Any, expected: list[Any], without: int, tmp_path: Path
) -> None:
    split = GlobalTime(valid_from=4, test_from=6, targets=targets, history=history)
    dataset = split_log(split, tmp_path)
    assert dataset.item_table["item_id"].to_list() == [1, 2, 3]
    test = dataset.holdout("test")
    histories = [test.histories[row : row + 1].items.tolist() for row in test.history_rows]
    assert list(zip(test.users.tolist(), test.targets.tolist(), histories, strict=True)) == expected
    assert test.without_history == without
    assert test.dropped == (2 if targets == "every" else 1)


@given(
    ascending_times,
    st.lists(st.integers(1, 9), min_size=2, max_size=2, unique=True).map(sorted),
    st.sampled_from(["first", "last", "every"]),
    st.sampled_from(["frozen", "advancing"]),
)
def test_histories_have_nothing_later_than_the_cut(
    users: list[list[int]], moments: list[int], chosen: Any, known: Any
) -> None:
    valid, test = moments
    users = [*users, [0, 9]]  # so that each part has an interaction
    times, offsets = flat(users)
    split = GlobalTime(valid_from=valid, test_from=test)
    cuts = cut_points(split, times, offsets)
    assert (cuts[:, 2] == np.diff(offsets)).all()
    for user, (end_of_training, end_of_validation, end) in zip(users, cuts, strict=True):
        assert user[:end_of_training] == [time for time in user if time < valid]
        assert user[end_of_validation:end] == [time for time in user if time >= test]
    bounds = offsets[:-1, None] + cuts[:, 1:]
    policy = split.model_copy(update={"targets": chosen, "history": known})
    rows, targets, ends = find_targets(policy, times, offsets, *bounds.T)
    assert (times[targets] >= test).all()
    if chosen == "every":
        assert targets.tolist() == np.flatnonzero(times >= test).tolist()
    else:
        assert len(set(rows.tolist())) == len(rows) == (cuts[:, 1] < cuts[:, 2]).sum()
    for start, end, target in zip(offsets[rows], ends, targets, strict=True):
        limit = test if known == "frozen" else times[target]
        assert (times[start:end] < limit).all()
        assert end == target or times[end] >= limit, "the history is complete"


def test_user_holdout_of_a_dataset(tmp_path: Path) -> None:
    """Of four users two are for training; the catalogue is theirs and the validation user's."""
    rows = [(user, item, time) for user in range(4) for time, item in enumerate([user, 5, 6])]
    split = UserHoldout(valid_fraction=0.25, test_fraction=0.25, seed=3)
    dataset = split_log(split, tmp_path, log_of(rows))
    assert sorted(dataset.cuts.tolist()) == [[0, 0, 3], [0, 3, 3], [3, 3, 3], [3, 3, 3]]
    (tested,) = np.flatnonzero(dataset.cuts[:, 1] == 0)
    assert set(dataset.item_table["item_id"]) == {0, 1, 2, 3, 5, 6} - {tested}
    for part, length in (("valid", 2), ("test", 1)):  # the first item of the last is unknown
        held_out = dataset.holdout(part)  # type: ignore[arg-type]
        assert dataset.vocabulary.decode(held_out.targets).to_list() == [6]
        assert held_out.histories.lengths.tolist() == [length]
    assert dataset.holdout("test").users.tolist() == [tested]
    assert dataset.histories("test").lengths[tested] == 0
    seeds = (UserHoldout(seed=seed) for seed in range(20))
    drawn = {int(np.argmin(cut_points(s, np.arange(9), np.arange(10))[:, 1])) for s in seeds}
    assert len(drawn) > 1, "the seed decides"


@pytest.mark.parametrize("split", [LeaveLastOut(targets=3), LeaveLastBasketOut()], ids=str)
@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=50))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_partition_the_log(
    split: Split, tmp_path: Path, rows: list[tuple[int, int, int]]
) -> None:
    """The history before test plus the test targets is the user's log, in order."""
    dataset = split_log(split, tmp_path, log_of(rows))
    known, train = lists(dataset.histories("test")), lists(dataset.histories("valid"))
    assert {item for history in known for item in history} == set(range(1, dataset.num_items + 1))
    targets: dict[Part, dict[int, list[int]]] = {}
    for part in PARTS:
        holdout, targets[part] = dataset.holdout(part), {}
        assert len(holdout.targets) + holdout.dropped == dataset.manifest.counts[part]
        for user, item in zip(holdout.users.tolist(), holdout.targets.tolist(), strict=True):
            targets[part].setdefault(user, []).append(item)
        before = train if part == "valid" else known
        assert lists(holdout.histories) == [before[user] for user in targets[part]]
        assert holdout.users.tolist() == np.array([*targets[part]])[holdout.history_rows].tolist()
    for user, user_id in enumerate(dataset.user_ids):
        bought = sorted((row for row in rows if row[0] == user_id), key=lambda row: row[2])
        tokens = dataset.vocabulary.encode([item for _, item, _ in bought]).tolist()
        assert train[user] + targets["valid"].get(user, []) == known[user]
        assert known[user] + targets["test"].get(user, []) == [t for t in tokens if t != 0]


def test_cuts_do_not_depend_on_the_blocks_they_are_found_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real logs have users beyond the first block; small ones do not."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], rng.integers(1, 9, 40).cumsum()])
    times = np.concatenate([np.sort(rng.integers(0, 99, n)) for n in np.diff(offsets)])
    for split in (LeaveLastBasketOut(), GlobalTime(valid_from=60, test_from=80)):
        whole = cut_points(split, times, offsets)
        with monkeypatch.context() as patch:
            patch.setattr("recsys.data.splits.BLOCK", 10)
            np.testing.assert_array_equal(cut_points(split, times, offsets), whole)


def test_dates_of_yaml_are_dates_of_the_log(tmp_path: Path) -> None:
    log = LOG.with_columns(timestamp=pl.date(2011, 11, pl.col("timestamp")))
    overrides = ["data.split={kind: global_time, valid_from: 2011-11-04, test_from: 2011-11-06}"]
    config = parse_experiment({}, overrides).data
    dataset = prepare(log, config, tmp_path / "out")
    assert dataset.cuts.tolist() == [[2, 3, 7], [1, 2, 3], [0, 0, 2]]
    assert dataset.config.split == config.split


@pytest.mark.parametrize("units", [10**3, 10**9])
def test_dates_mean_the_same_for_epochs_of_finer_units(units: int, tmp_path: Path) -> None:
    """A date was once compared with milliseconds as seconds: all of 1970 is before them."""
    first, second = (
        split_log(GlobalTime(**DATES), tmp_path, log, since="2024-01-02").histories("test")
        for log in (days(1), days(units))
    )
    assert len(first.items) > 0
    assert (second.items.tolist(), second.offsets.tolist()) == (
        first.items.tolist(),
        first.offsets.tolist(),
    )
