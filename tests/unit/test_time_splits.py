"""Splits by time and by user: by hand, and that training has no future and no held-out user."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.config import Backtest, DataConfig, GlobalTime, Split, UserHoldout, parse_experiment
from recsys.data.holdout import find_targets
from recsys.data.prepared import Part, prepare
from recsys.data.splits import cut_points, kth_latest, user_holdout
from recsys.errors import InputError

# Two users: times 1 4 5 9, and 5 8.
TIMES, OFFSETS = np.array([1, 4, 5, 9, 5, 8]), np.array([0, 4, 6])

# Validation starts at 4, test at 6: item 9 is only a test target, c only a test user.
LOG = pl.DataFrame(
    [
        *[("a", 1, 1), ("a", 2, 2), ("a", 3, 4)],
        *[("a", 1, 6), ("a", 2, 6), ("a", 9, 7), ("a", 3, 8)],
        *[("b", 3, 1), ("b", 1, 5), ("b", 9, 6)],
        *[("c", 2, 6), ("c", 3, 7)],
    ],
    schema=["user_id", "item_id", "timestamp"],
    orient="row",
)

DATES: dict[str, Any] = {
    "valid_from": "2024-01-04",
    "test_from": "2024-01-06T00:00:00",
    "test_until": "2024-01-08",
}


def days(units: int) -> pl.DataFrame:
    """The log with a day for each time, as an epoch with so many units in a second."""
    since_1970 = 19_722 + pl.col("timestamp")
    return LOG.with_columns(timestamp=since_1970 * 86_400 * units)


users_with_ascending_times = st.lists(
    st.lists(st.integers(0, 9), min_size=1, max_size=8).map(sorted), min_size=1, max_size=8
)


def flat(times: list[list[int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return timestamps and offsets."""
    return np.concatenate([np.array(user) for user in times]), np.cumsum([0, *map(len, times)])


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (GlobalTime(valid_from=5, test_from=8), [[2, 3, 4], [0, 1, 2]]),
        (GlobalTime(valid_from=4.5, test_from=9), [[2, 3, 4], [0, 2, 2]]),
        (GlobalTime(test_fraction=1 / 3, valid_fraction=1 / 3), [[2, 3, 4], [0, 1, 2]]),
        # Half of the rows would separate the two at time 5, so both are in test.
        (GlobalTime(test_fraction=1 / 2, valid_fraction=1 / 6), [[1, 2, 4], [0, 0, 2]]),
        (GlobalTime(test_from=9, valid_fraction=1 / 6), [[3, 3, 4], [1, 2, 2]]),
        (GlobalTime(valid_from="1970-01-01T00:00:05", test_from=8), [[2, 3, 4], [0, 1, 2]]),
    ],
    ids=str,
)
def test_global_time_by_hand(split: GlobalTime, expected: list[list[int]]) -> None:
    assert cut_points(split, TIMES, OFFSETS).tolist() == expected


def test_dates_of_yaml_are_dates_of_the_log(tmp_path: Path) -> None:
    log = LOG.with_columns(timestamp=pl.date(2011, 11, pl.col("timestamp")))
    overrides = ["data.split={kind: global_time, valid_from: 2011-11-04, test_from: 2011-11-06}"]
    config = parse_experiment({}, overrides).data
    dataset = prepare(log, config, tmp_path / "out")
    assert dataset.cuts.tolist() == [[2, 3, 7], [1, 2, 3], [0, 0, 2]]
    assert dataset.config.split == config.split


@pytest.mark.parametrize(
    "split",
    [
        GlobalTime(test_from=10),
        GlobalTime(valid_from=1, test_from=9),
        GlobalTime(test_from="2020-01-01"),
        GlobalTime(test_fraction=0.9, valid_fraction=0.9),
    ],
    ids=str,
)
def test_a_split_with_an_empty_part_names_the_times_of_the_log(split: Split) -> None:
    with pytest.raises(InputError, match=r"no test interactions.*times run from 1 to 9"):
        cut_points(split, TIMES, OFFSETS)


def test_a_backtest_is_not_one_split() -> None:
    with pytest.raises(InputError, match="recsys backtest"):
        cut_points(Backtest(), TIMES, OFFSETS)


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
    dataset = prepare(LOG, DataConfig(split=split), tmp_path / "out")
    assert dataset.item_table["item_id"].to_list() == [1, 2, 3]
    test = dataset.holdout("test")
    histories = [test.histories[row : row + 1].items.tolist() for row in test.history_rows]
    assert list(zip(test.users.tolist(), test.targets.tolist(), histories, strict=True)) == expected
    assert test.without_history == without
    assert test.dropped == (2 if targets == "every" else 1)


def test_unknown_items_are_not_a_history(tmp_path: Path) -> None:
    """User d bought only item 9, which is outside the catalogue, before item 1."""
    log = pl.concat(
        [LOG, pl.DataFrame([("d", 9, 6), ("d", 1, 7)], schema=LOG.schema, orient="row")]
    )
    split = GlobalTime(valid_from=4, test_from=6, targets="last", history="advancing")
    test = prepare(log, DataConfig(split=split), tmp_path / "out").holdout("test")
    assert test.users.tolist() == [0, 2]
    assert test.without_history == 1


def test_next_purchases_are_all_purchases_after_the_cut(tmp_path: Path) -> None:
    split = GlobalTime(valid_from=4, test_from=6, targets="last", history="advancing")
    together = prepare(LOG, DataConfig(split=split), tmp_path / "out").next_purchases("test")
    assert together.users.tolist() == [0]
    assert together.targets.items.tolist() == [1, 2, 3]
    assert together.histories.items.tolist() == [1, 2, 3]
    assert (together.dropped, together.without_history) == (2, 2)


def test_the_log_ends_where_the_test_part_does(tmp_path: Path) -> None:
    """Later interactions do not affect the filters."""
    split = GlobalTime(valid_from=2, test_from=4, test_until=6)
    dataset = prepare(LOG, DataConfig(split=split, min_item_interactions=2), tmp_path / "out")
    assert dataset.timestamps.tolist() == [1, 4, 1, 5]
    assert dataset.item_table["item_id"].to_list() == [1, 3]


@given(
    users_with_ascending_times,
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
    cuts = cut_points(GlobalTime(valid_from=valid, test_from=test), times, offsets)
    assert (np.diff(cuts, axis=1, prepend=0) >= 0).all()
    assert (cuts[:, 2] == np.diff(offsets)).all()
    for user, (end_of_training, end_of_validation, end) in zip(users, cuts, strict=True):
        assert user[:end_of_training] == [time for time in user if time < valid]
        assert user[end_of_validation:end] == [time for time in user if time >= test]
    found = find_targets(times, offsets, (cuts[:, 1], cuts[:, 2]), chosen, known)
    assert (times[found.targets] >= test).all()
    assert found.starts.tolist() == offsets[found.users].tolist()
    in_test = {index for index in range(len(times)) if times[index] >= test}
    if chosen == "every":
        assert found.targets.tolist() == sorted(in_test)
    else:
        assert len(set(found.users.tolist())) == len(found.users) == (cuts[:, 1] < cuts[:, 2]).sum()
    for start, end, target in zip(found.starts, found.ends, found.targets, strict=True):
        limit = test if known == "frozen" else times[target]
        assert (times[start:end] < limit).all()
        assert end == target or times[end] >= limit, "the history is complete"


@given(st.lists(st.integers(1, 9), min_size=3, max_size=30), st.integers(0, 5))
def test_held_out_users_are_never_trained_on(lengths: list[int], seed: int) -> None:
    cuts = user_holdout(np.array(lengths), 0.2, 0.3, np.random.default_rng(seed))
    kinds = {0: "train", 1: "valid", 2: "test"}
    rows = [kinds[int((row == 0).sum())] for row in cuts]
    assert {tuple(row) for row in np.minimum(cuts, 1)} == {(1, 1, 1), (0, 1, 1), (0, 0, 1)}
    assert cuts.max(axis=1).tolist() == lengths
    assert rows.count("valid") == max(1, round(0.2 * len(lengths)))
    assert rows.count("test") == max(1, round(0.3 * len(lengths)))


def test_user_holdout_of_a_dataset(tmp_path: Path) -> None:
    """Of four users two are for training; the catalogue is theirs and the validation user's."""
    rows = [(user, item, time) for user in range(4) for time, item in enumerate([user, 5, 6])]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    split = UserHoldout(valid_fraction=0.25, test_fraction=0.25, seed=3)
    dataset = prepare(log, DataConfig(split=split), tmp_path / "out")
    (tested,) = np.flatnonzero(dataset.cuts[:, 1] == 0)
    assert set(dataset.item_table["item_id"]) == {0, 1, 2, 3, 5, 6} - {tested}
    test = dataset.holdout("test")
    assert test.users.tolist() == [tested]
    assert dataset.vocabulary.decode(test.targets).to_list() == [6]
    assert dataset.vocabulary.decode(test.histories.items).to_list() == [5]
    assert dataset.histories("test").lengths[tested] == 0
    assert sorted(dataset.histories("valid").lengths.tolist()) == [0, 0, 3, 3]
    again = prepare(log, DataConfig(split=split), tmp_path / "again")
    assert again.fingerprint == dataset.fingerprint
    others = {
        int(np.argmin(cut_points(UserHoldout(seed=n), np.arange(9), np.arange(10))[:, 1]))
        for n in range(20)
    }
    assert len(others) > 1, "the seed decides"


def test_too_few_users_to_hold_out() -> None:
    with pytest.raises(InputError, match="of 2 users 1 are for validation and 1 for test"):
        cut_points(UserHoldout(), np.arange(2), np.arange(3))


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("{kind: global_time, test_from: soon}", "a number or an ISO 8601 date, not 'soon'"),
        ("{kind: global_time, test_from: 2, valid_from: 3}", "must ascend"),
        ("{kind: global_time, test_from: 2, test_fraction: 0.5}", "exclude each other"),
        ("{kind: backtest, cuts: [3, 2]}", "the cuts must ascend"),
        ("{kind: backtest, folds: 20}", "folds times test_fraction must be below 1"),
        ("random", "the kind must be 'leave_last_out', 'leave_last_basket_out', 'global_time'"),
    ],
)
def test_wrong_splits(split: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_experiment({}, [f"data.split={split}"])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_validation_may_not_reach_before_the_log_begins() -> None:
    """Six rows for validation and one for test are more than the six there are."""
    split = GlobalTime(test_fraction=1 / 6, valid_fraction=0.99)
    with pytest.raises(InputError, match="leaves no training or no test"):
        cut_points(split, TIMES, OFFSETS)


def test_an_advancing_history_does_not_reach_into_another_users() -> None:
    """The second user begins when the first one ends."""
    times, offsets = np.array([1, 5, 5, 5, 8]), np.array([0, 2, 5])
    part = np.array([1, 0]), np.array([2, 3])
    places = find_targets(times, offsets, part, "every", "advancing")
    assert places.targets.tolist() == [1, 2, 3, 4]
    assert places.starts.tolist() == [0, 2, 2, 2]
    assert places.ends.tolist() == [1, 2, 2, 4]


def test_held_out_users_are_asked_for_their_last_item_after_all_the_others(
    tmp_path: Path,
) -> None:
    rows = [(user, item, time) for user in range(4) for time, item in enumerate([1, 2, 3])]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    split = UserHoldout(valid_fraction=0.25, test_fraction=0.25)
    dataset = prepare(log, DataConfig(split=split), tmp_path / "out")
    for part in get_args(Part):
        held_out = dataset.holdout(part)
        assert dataset.vocabulary.decode(held_out.targets).to_list() == [3]
        assert dataset.vocabulary.decode(held_out.histories.items).to_list() == [1, 2]


@pytest.mark.parametrize("high", [3, 100_000, 2**40, 2**63 - 1])
def test_the_kth_latest_of_any_times(high: int) -> None:
    times = np.random.default_rng(0).integers(-high, high, size=500)
    times[7] = -high
    for k in (1, 2, 50, 499, 500):
        assert kth_latest(times, k) == np.sort(times)[-k]


@pytest.mark.parametrize("units", [10**3, 10**6, 10**9])
def test_dates_mean_the_same_for_epochs_of_finer_units(units: int, tmp_path: Path) -> None:
    """A date was once compared with milliseconds as seconds: all of 1970 is before them."""
    config = DataConfig(split=GlobalTime(**DATES), since="2024-01-02")
    found = [
        prepare(days(each), config, tmp_path / f"{each}").histories("test") for each in (1, units)
    ]
    seconds, finer = found
    assert len(seconds.items) > 0
    assert finer.items.tolist() == seconds.items.tolist()
    assert finer.offsets.tolist() == seconds.offsets.tolist()


@pytest.mark.parametrize("units", [1, 10**3])
def test_a_time_without_end_does_not_change_the_unit(units: int, tmp_path: Path) -> None:
    """9999-12-31 is later in seconds than some times of 1971 in milliseconds."""
    endless = LOG.head(1).with_columns(timestamp=pl.lit(253_402_214_400 * units))
    config = DataConfig(split=GlobalTime(**DATES), since="2024-01-02")
    found = [
        prepare(log, config, tmp_path / f"{number}").histories("test")
        for number, log in enumerate((days(units), days(units).vstack(endless)))
    ]
    assert found[1].items.tolist() == found[0].items.tolist()


@pytest.mark.parametrize(("units", "warned"), [(1, False), (1000, True)])
def test_a_pause_of_seconds_beside_milliseconds_is_warned_of(
    units: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = DataConfig(session_gap=1800)
    prepare(days(units).vstack(days(units)).vstack(days(units)), config, tmp_path / "data")
    said = [record.getMessage() for record in caplog.records if "session_gap" in record.msg]
    expected = (
        "the frame: data.session_gap is 1800 milliseconds, 1.8 seconds: if it was meant in "
        "seconds, give 1800000"
    )
    assert said == [expected] * warned
