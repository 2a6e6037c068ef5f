"""Histories of different lengths, against the same operations on lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.histories import PAD, Histories

Lists = list[list[int]]
ragged = st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=7)


def as_lists(histories: Histories) -> Lists:
    spans = zip(histories.offsets[:-1], histories.offsets[1:], strict=True)
    return [histories.items[start:end].tolist() for start, end in spans]


@given(ragged)
def test_from_lists_keeps_the_lists(lists: Lists) -> None:
    histories = Histories.from_lists(lists)
    assert as_lists(histories) == lists
    assert len(histories) == len(lists)
    assert histories.items.dtype == np.int32
    assert histories.offsets.dtype == np.int64


@given(ragged)
def test_lengths_and_users(lists: Lists) -> None:
    histories = Histories.from_lists(lists)
    assert histories.lengths.tolist() == [len(row) for row in lists]
    assert histories.users.tolist() == [user for user, row in enumerate(lists) for _ in row]


@given(ragged, st.integers(0, 8))
def test_newest(lists: Lists, count: int) -> None:
    expected = [row[max(0, len(row) - count) :] for row in lists]
    assert as_lists(Histories.from_lists(lists).latest(count)) == expected


@given(ragged.filter(bool), st.data())
def test_take(lists: Lists, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=9))
    taken = Histories.from_lists(lists).take(np.array(rows, dtype=np.int64))
    assert as_lists(taken) == [lists[row] for row in rows]


@given(ragged, st.integers(-9, 9) | st.none(), st.integers(-9, 9) | st.none())
def test_slice(lists: Lists, start: int | None, stop: int | None) -> None:
    assert as_lists(Histories.from_lists(lists)[start:stop]) == lists[start:stop]


def test_slice_shares_memory() -> None:
    histories = Histories.from_lists([[1, 2], [3], [4, 5]])
    assert np.shares_memory(histories[1:].items, histories.items)


@given(ragged, st.integers(0, 3))
def test_padded(lists: Lists, extra: int) -> None:
    longest = max(map(len, lists), default=0)
    expected = [row + [PAD] * (longest + extra - len(row)) for row in lists]
    histories = Histories.from_lists(lists)
    assert histories.padded(longest + extra).tolist() == expected
    assert histories.padded().shape == (len(lists), longest)


@given(st.lists(st.integers(0, 3), max_size=12), st.data())
def test_from_spans_skips_pad(items: list[int], data: st.DataObject) -> None:
    bound = st.integers(0, len(items))
    spans = [sorted(pair) for pair in data.draw(st.lists(st.tuples(bound, bound), max_size=5))]
    starts, ends = (np.array([span[i] for span in spans], dtype=np.int64) for i in (0, 1))
    histories = Histories.from_spans(np.array(items, dtype=np.int32), starts, ends)
    expected = [[item for item in items[start:end] if item != PAD] for start, end in spans]
    assert as_lists(histories) == expected


def test_histories_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Histories.from_lists([[1]]).items = np.array([2])  # type: ignore[misc]
