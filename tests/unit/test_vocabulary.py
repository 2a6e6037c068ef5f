"""The mapping between item ids and item tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.vocabulary import Vocabulary

NUMBERS = Vocabulary(pl.Series([5, 7, 90]))
WORDS = Vocabulary(pl.Series(["007", "12", "boots"]))


def test_tokens_count_from_one() -> None:
    tokens = NUMBERS.encode([90, 5, 7, 5])
    assert tokens.tolist() == [3, 1, 2, 1]
    assert tokens.dtype == np.int32
    assert len(NUMBERS) == 3


def test_unknown_ids_are_pad() -> None:
    assert NUMBERS.encode([6, 90, -1]).tolist() == [0, 3, 0]
    assert NUMBERS.encode(pl.Series([6, None, 90])).tolist() == [0, 0, 3]
    assert WORDS.encode(["hat", "boots"]).tolist() == [0, 3]


@pytest.mark.parametrize("empty", [[], np.empty(0), pl.Series([], dtype=pl.Null)])
def test_no_ids(empty: list[int]) -> None:
    assert NUMBERS.encode(empty).shape == (0,)
    assert NUMBERS.decode([]).len() == 0


def test_integers_and_text_are_compared_as_text() -> None:
    assert NUMBERS.encode(["7", "007", "seven"]).tolist() == [2, 0, 0]
    assert WORDS.encode([12, 7]).tolist() == [2, 0]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint64])
def test_any_integers(dtype: type[np.integer]) -> None:
    assert NUMBERS.encode(np.array([7, 8, 90], dtype=dtype)).tolist() == [2, 0, 3]


def test_pandas_series() -> None:
    assert WORDS.encode(pd.Series(["boots", "cap"])).tolist() == [3, 0]


def test_decode() -> None:
    assert NUMBERS.decode(np.array([3, 0, 1], dtype=np.int32)).to_list() == [90, None, 5]
    assert WORDS.decode([2]).to_list() == ["12"]


@pytest.mark.parametrize("token", [-1, 4])
def test_decode_refuses_other_tokens(token: int) -> None:
    with pytest.raises(IndexError, match=r"item tokens must be 0 to 3"):
        NUMBERS.decode([1, token])


@given(st.sets(st.integers(-(2**63), 2**63 - 1) | st.text(min_size=1), min_size=1))
def test_decode_inverts_encode(ids: set[int | str]) -> None:
    for kind in (int, str):
        catalogue = pl.Series(sorted(i for i in ids if isinstance(i, kind)))
        if len(catalogue):
            vocabulary = Vocabulary(catalogue)
            tokens = vocabulary.encode(catalogue)
            assert tokens.tolist() == list(range(1, len(catalogue) + 1))
            assert vocabulary.decode(tokens).equals(catalogue)
