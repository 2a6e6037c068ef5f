"""Cut points: hand-computed, and partitioning the log whatever its users' lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.splits import leave_last_out


def test_leave_last_out_by_hand() -> None:
    cuts = leave_last_out(np.array([1, 2, 3, 4, 100]))
    assert cuts.tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [98, 99, 100]]
    assert cuts.dtype == np.int32


def test_no_users() -> None:
    assert leave_last_out(np.empty(0, dtype=np.int64)).shape == (0, 3)


@given(st.lists(st.integers(1, 10_000), min_size=1))
def test_parts_cover_each_interaction_once(lengths: list[int]) -> None:
    cuts = leave_last_out(np.array(lengths, dtype=np.int64)).astype(int)
    sizes = np.diff(cuts, axis=1, prepend=0)
    assert (sizes[:, 0] >= 1).all(), "something to train on"
    assert np.isin(sizes[:, 1:], [0, 1]).all(), "at most one target in each part"
    assert (sizes[:, 2] >= sizes[:, 1]).all(), "no validation target without a test target"
    assert cuts[:, 2].tolist() == lengths
