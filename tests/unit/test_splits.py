"""Cut points: by hand, and that they partition every log."""

from __future__ import annotations

from itertools import chain, groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.splits import leave_last_basket_out, leave_last_out

users_with_ascending_times = st.lists(
    st.lists(st.integers(-3, 3), min_size=1, max_size=12).map(sorted), min_size=1, max_size=8
)


def basket_cuts(times: list[list[int]]) -> list[list[int]]:
    offsets = np.cumsum([0, *map(len, times)])
    flat = np.array([time for user in times for time in user], dtype=np.int64)
    cuts = leave_last_basket_out(flat, offsets)
    assert cuts.dtype == np.int32
    return [list(map(int, row)) for row in cuts]


def test_leave_last_out_by_hand() -> None:
    cuts = leave_last_out(np.array([1, 2, 3, 4, 100]))
    assert cuts.tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [98, 99, 100]]
    assert cuts.dtype == np.int32


def test_leave_last_five_out_by_hand() -> None:
    cuts = leave_last_out(np.array([1, 5, 6, 10, 11, 100]), targets=5)
    assert cuts.tolist() == [
        [1, 1, 1],  # too few to hold out five
        [5, 5, 5],
        [1, 1, 6],  # one is left for training
        [5, 5, 10],  # too few for validation
        [1, 6, 11],
        [90, 95, 100],
    ]


def test_leave_last_basket_out_by_hand() -> None:
    assert basket_cuts([[7], [7, 7, 7], [1, 2], [1, 1, 2, 2, 2], [1, 2, 3], [1, 1, 4, 5, 5]]) == [
        [1, 1, 1],  # a single basket of any size is for training
        [3, 3, 3],
        [1, 1, 2],
        [2, 2, 5],
        [1, 2, 3],
        [2, 3, 5],
    ]


def test_two_users_at_the_same_time_share_no_basket() -> None:
    assert basket_cuts([[1, 2, 3], [3, 4, 5], [5]]) == [[1, 2, 3], [1, 2, 3], [1, 1, 1]]


def test_no_users() -> None:
    assert leave_last_out(np.empty(0, dtype=np.int64), targets=3).shape == (0, 3)
    assert leave_last_basket_out(np.empty(0, dtype=np.int64), np.array([0])).shape == (0, 3)


@given(st.lists(st.integers(1, 10_000), min_size=1), st.integers(1, 20))
def test_parts_cover_each_interaction_once(lengths: list[int], targets: int) -> None:
    cuts = leave_last_out(np.array(lengths, dtype=np.int64), targets).astype(int)
    sizes = np.diff(cuts, axis=1, prepend=0)
    assert (sizes[:, 0] >= 1).all(), "something to train on"
    assert np.isin(sizes[:, 1:], [0, targets]).all(), "all targets of a part or none"
    assert (sizes[:, 2] >= sizes[:, 1]).all(), "no validation targets without test targets"
    assert cuts[:, 2].tolist() == lengths
    held_out = np.array(lengths) > targets
    assert (sizes[:, 2] > 0).tolist() == held_out.tolist(), "of whoever has enough"
    assert (sizes[:, 1] > 0).tolist() == (np.array(lengths) > 2 * targets).tolist()


@given(users_with_ascending_times)
def test_baskets_are_never_split(times: list[list[int]]) -> None:
    for user, (train, valid, end) in zip(times, basket_cuts(times), strict=True):
        baskets = [list(basket) for _, basket in groupby(user)]
        expected = {
            "train": baskets[: max(1, len(baskets) - 2)],
            "valid": baskets[-2:-1] if len(baskets) > 2 else [],
            "test": baskets[-1:] if len(baskets) > 1 else [],
        }
        found = {"train": user[:train], "valid": user[train:valid], "test": user[valid:end]}
        assert end == len(user)
        assert found == {part: list(chain(*those)) for part, those in expected.items()}


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_baskets_of_one_are_held_out_like_single_interactions(lengths: list[int]) -> None:
    assert (
        basket_cuts([list(range(n)) for n in lengths]) == leave_last_out(np.array(lengths)).tolist()
    )


@pytest.mark.parametrize("targets", [2, 5])
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_more_interactions_move_the_cuts_along(targets: int, lengths: list[int]) -> None:
    """More purchases at the start of a history go to training and change nothing else."""
    enough = np.array(lengths) + 2 * targets
    assert (leave_last_out(enough + 7, targets) == leave_last_out(enough, targets) + 7).all()
