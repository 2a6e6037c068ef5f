"""Some users with what they are recommended, and why."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.serving.bundle import ModelBundle
from recsys.serving.calibration import for_evaluation
from recsys.serving.explain import explain_items
from recsys.serving.histories import UserHistories
from recsys.serving.recommender import Recommender

_LIST, _NEWEST, _REASONS = 10, 6, 2
"""The numbers of items that are shown: of a list, of a history, and of reasons for an item."""


@dataclass(frozen=True, slots=True)
class NamedItem:
    """An item with its name."""

    item_id: str
    name: str = ""
    """Empty if the item table has none."""

    @property
    def label(self) -> str:
        """What people read: the name, or the id without one."""
        return self.name or self.item_id


@dataclass(frozen=True, slots=True)
class Recommended:
    """An item of a list."""

    item: NamedItem
    held_out: bool
    """Is it what the user took next?"""
    in_history: bool
    """Does the history hold it?"""
    reasons: tuple[tuple[NamedItem, float], ...]
    """Items of the history that speak for it, each with its part of all that the history adds or
    takes, 0 to 1 (`recsys.serving.explain`), the largest first; empty if it cannot be explained."""


@dataclass(frozen=True, slots=True)
class UserExample:
    """One user, with a list made from the history before the held-out item."""

    user_id: str
    newest: tuple[NamedItem, ...]
    """The newest items of the history, the newest first."""
    history_length: int
    held_out: NamedItem
    """What the user took next, which the model did not see."""
    recommended: tuple[Recommended, ...]
    """The best first."""

    @property
    def rank(self) -> int | None:
        """The place of the held-out item in the list; None if it is not there."""
        return next((n for n, entry in enumerate(self.recommended, 1) if entry.held_out), None)


def examples_of(
    recommender: Recommender,
    dataset: PreparedDataset,
    users: int = 20,
    seed: int = 0,
    seconds: float = math.inf,
) -> tuple[UserExample, ...]:
    """Return the lists of some users with a test target, drawn at random.

    Args:
        recommender: the model.
        dataset: the dataset that it was trained on, or that of a later log.
        users: how many users; fewer if fewer have a test target.
        seed: of the draw.
        seconds: after so many, the other users are left out.

    Raises:
        InputError: there is no test target; see `for_evaluation`.
    """
    bundle = recommender.bundle
    encoded = for_evaluation(bundle, dataset, "test")
    holdout = find_holdout(encoded, "test", bundle.experiment.evaluation.request_time)
    _, firsts = np.unique(holdout.users, return_index=True)
    generator = np.random.default_rng(seed)
    chosen = generator.choice(firsts, min(users, len(firsts)), replace=False)
    names, examples, ends = _names(bundle), dict[int, UserExample](), time.monotonic() + seconds
    for row in map(int, chosen):
        if examples and time.monotonic() > ends:
            break
        examples[row] = _example(recommender, encoded, holdout, row, names)
    return tuple(examples[row] for row in sorted(examples))


def _example(
    recommender: Recommender,
    dataset: PreparedDataset,
    holdout: Holdout,
    row: int,
    names: Mapping[Any, NamedItem],
) -> UserExample:
    bundle, user = recommender.bundle, holdout.users[row : row + 1]
    histories = holdout.histories.take(holdout.history_rows[row : row + 1])
    length = len(histories.items)
    history = UserHistories(
        dataset.user_ids.gather(user), histories, np.zeros(1, dtype=np.int64), np.arange(length)
    )
    at = int(dataset.timestamps[holdout.positions[row]]) if bundle.times == "request" else None
    best: pl.DataFrame = recommender.recommend(history, k=min(_LIST, bundle.num_items), at=at)
    items, ids = best["item_id"].to_list(), bundle.vocabulary.decode(histories.items).to_list()
    held_out = bundle.vocabulary.decode(holdout.targets[row : row + 1]).to_list()[0]
    try:
        explained = explain_items(bundle, history, items, at=at)
    except InputError:  # no item of the history is known
        explained = None
    recommended = []
    for number, item in enumerate(items):
        reasons = () if explained is None else _largest(explained[number])
        named = tuple((names[reason], share) for reason, share in reasons)
        recommended.append(Recommended(names[item], item == held_out, item in ids, named))
    return UserExample(
        user_id=str(history.user_ids[0]),
        newest=tuple(names[item] for item in ids[::-1][:_NEWEST]),
        history_length=length,
        held_out=names[held_out],
        recommended=tuple(recommended),
    )


def _largest(parts: pl.DataFrame) -> Sequence[tuple[Any, float]]:
    """Return the items of a history with the largest shares of an explanation."""
    of_items = parts.group_by("item_id", maintain_order=True).agg(pl.col("share").sum())
    positive = of_items.filter(pl.col("share") > 0).sort("share", descending=True)
    return positive.head(_REASONS).rows()


def _names(bundle: ModelBundle) -> dict[Any, NamedItem]:
    """Return the items of the catalogue by their ids."""
    table, columns = bundle.item_table, bundle.name_columns
    ids = table["item_id"].to_list()
    texts = table[columns[0]].cast(pl.String).fill_null("") if columns else [""] * len(ids)
    return {item: NamedItem(str(item), text) for item, text in zip(ids, texts, strict=True)}
