"""Arguments that nobody meant: a result, or one line that says what is wrong."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from recsys.data.prepared import prepare
from recsys.errors import InputError
from recsys.serving.recommender import Recommender

LONG = "x" * 100_000
ODD: list[Any] = [
    *(None, 0, -1, 2.5, float("nan"), float("inf"), True, 10**30, 2**64, np.int64(3), pd.NA),
    *("3", "\ud800", LONG, "\x1b[2Jx", "nofile.csv", "a\0b", b"x", Path("x\0y")),
    *([1], (), {}, {"hat"}, range(3), slice(1), object(), len, dt.date(2020, 1, 1)),
    *({"a": 1}, {"a": [None]}, {"a": ["hat", None]}, {"\ud800": ["hat"]}, {None: []}),
    *({2**64: ["hat"]}, {("a",): ["hat"]}, {"a": {"b": 1}}, [{}], [[["hat"]]], [["hat", 1]]),
    *([["hat"], None], [[2**64]], [["\ud800"]], [[object()]], [[b"hat"]], [[float("nan")]]),
    *(np.array([1]), np.zeros((2, 2)), np.array([None]), pd.Series(["hat"]), pl.DataFrame()),
]


HISTORY = [["hat", "boots"]]
CALLS: dict[str, Callable[[Recommender, Any], object]] = {
    "k": lambda model, odd: model.recommend(HISTORY, k=odd),
    "retrieve": lambda model, odd: model.recommend(HISTORY, k=1, retrieve=odd),
    "seen": lambda model, odd: model.recommend(HISTORY, k=1, seen=odd),
    "at": lambda model, odd: model.recommend(HISTORY, k=1, at=odd),
    "allow": lambda model, odd: model.recommend(HISTORY, k=1, allow=odd),
    "deny": lambda model, odd: model.recommend(HISTORY, k=1, deny=odd),
    "histories": lambda model, odd: model.recommend(odd, k=1),
    "users": lambda model, odd: model.recommend(users=odd, k=1),
    "user": lambda model, odd: model.recommend(users=[odd], k=1),
    "candidates": lambda model, odd: model.score(HISTORY, odd),
    "candidate": lambda model, odd: model.score(HISTORY, [odd]),
    "item": lambda model, odd: model.similar_items(odd),
    "k of similar": lambda model, odd: model.similar_items("hat", k=odd),
    "n": lambda model, odd: model.generate(HISTORY, n=odd),
    "explained": lambda model, odd: model.explain(["hat"], odd),
    "explaining": lambda model, odd: model.explain(odd, "hat"),
    "new items": lambda model, odd: model.with_new_items(odd),
}


def outcome(call: Callable[[], object]) -> str | None:
    """The message of an `InputError`, or of the `TypeError` of a number; None for a result."""
    try:
        call()
    except TypeError as error:
        return str(error)
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017 - either outcome is right
        assert len(str(error)) <= 3_000  # noqa: PT017
        return str(error)
    return None


@pytest.mark.filterwarnings("ignore")  # numpy and pandas warn of some of these values
@pytest.mark.parametrize("argument", CALLS)
def test_odd_arguments(argument: str, recommender: Recommender) -> None:
    for odd in ODD:
        outcome(lambda odd=odd: CALLS[argument](recommender, odd))  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["\ud800", "x" * 300, "a\0b", "a/" * 3000, "", "\x1b[2J"])
def test_odd_paths(path: str) -> None:
    assert outcome(lambda: Recommender.load(path)) is not None
    assert outcome(lambda: prepare(path)) is not None
