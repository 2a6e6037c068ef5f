"""Histories of different lengths, against the same operations on lists; and item tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.histories import PAD, Histories
from recsys.data.prepared import Vocabulary

Lists = list[list[int]]
ragged = st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=7)
bound = st.integers(-9, 9) | st.none()


def as_lists(histories: Histories) -> Lists:
    spans = zip(histories.offsets[:-1], histories.offsets[1:], strict=True)
    return [histories.items[start:end].tolist() for start, end in spans]


@given(ragged, st.integers(0, 8), bound, bound, st.data())
def test_histories_are_lists(
    lists: Lists, count: int, start: int | None, stop: int | None, data: st.DataObject
) -> None:
    histories = Histories.from_lists(lists)
    assert as_lists(histories) == lists
    assert len(histories) == len(lists)
    assert histories.items.dtype == np.int32
    assert histories.offsets.dtype == np.int64
    assert histories.lengths.tolist() == [len(row) for row in lists]
    assert histories.users.tolist() == [user for user, row in enumerate(lists) for _ in row]
    assert as_lists(histories.latest(count)) == [row[max(0, len(row) - count) :] for row in lists]
    assert as_lists(histories[start:stop]) == lists[start:stop]
    longest = max(map(len, lists), default=0)
    padded = [row + [PAD] * (longest + count - len(row)) for row in lists]
    assert histories.padded(longest + count).tolist() == padded
    assert histories.padded().shape == (len(lists), longest)
    if lists:
        rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=9))
        taken = histories.take(np.array(rows, dtype=np.int64))
        assert as_lists(taken) == [lists[row] for row in rows]


@given(st.lists(st.integers(0, 3), max_size=12), st.data())
def test_spans_skip_pad(items: list[int], data: st.DataObject) -> None:
    bound = st.integers(0, len(items))
    spans = [sorted(pair) for pair in data.draw(st.lists(st.tuples(bound, bound), max_size=5))]
    starts, ends = (np.array([span[i] for span in spans], dtype=np.int64) for i in (0, 1))
    every = Histories.from_lists([items])
    histories = every.spans(starts, ends)
    expected = [[item for item in items[start:end] if item != PAD] for start, end in spans]
    assert as_lists(histories) == expected


NUMBERS = Vocabulary(pl.Series([5, 7, 90]))
WORDS = Vocabulary(pl.Series(["007", "12", "boots"]))


@pytest.mark.parametrize(
    ("vocabulary", "ids", "tokens"),
    [
        (NUMBERS, [90, 5, 7, 5], [3, 1, 2, 1]),
        (NUMBERS, [6, 90, -1], [0, 3, 0]),
        (NUMBERS, pl.Series([6, None, 90]), [0, 0, 3]),
        (NUMBERS, ["7", "007", "--7", "+7", "9_0", "٩٠", "seven"], [2, 0, 0, 0, 0, 0, 0]),
        (NUMBERS, np.array([7, 8, 90], dtype=np.int8), [2, 0, 3]),
        (NUMBERS, np.array([7, 8, 90], dtype=np.uint64), [2, 0, 3]),
        (WORDS, ["hat", "boots"], [0, 3]),
        (WORDS, [12, 7], [2, 0]),
        (WORDS, pd.Series(["boots", "cap"]), [3, 0]),
        (NUMBERS, [], []),
        (NUMBERS, np.empty(0), []),
        (NUMBERS, pl.Series([], dtype=pl.Null), []),
    ],
)
def test_tokens_of_ids(vocabulary: Vocabulary, ids: Any, tokens: list[int]) -> None:
    encoded = vocabulary.encode(ids)
    assert encoded.tolist() == tokens
    assert encoded.dtype == np.int32
    assert len(vocabulary) == 3


def test_ids_of_tokens() -> None:
    assert NUMBERS.decode(np.array([3, 0, 1], dtype=np.int32)).to_list() == [90, None, 5]
    assert WORDS.decode([2]).to_list() == ["12"]
    assert NUMBERS.decode([]).len() == 0
    for token in (-1, 4):
        with pytest.raises(IndexError, match=r"item tokens must be 0 to 3"):
            NUMBERS.decode([1, token])


@given(st.sets(st.integers(-(2**63), 2**63 - 1) | st.text(min_size=1), min_size=1))
def test_decode_inverts_encode(ids: set[int | str]) -> None:
    for kind in (int, str):
        catalogue = pl.Series(sorted(i for i in ids if isinstance(i, kind)))
        if len(catalogue):
            tokens = Vocabulary(catalogue).encode(catalogue)
            assert tokens.tolist() == list(range(1, len(catalogue) + 1))
            assert Vocabulary(catalogue).decode(tokens).equals(catalogue)
