"""Some users with what they are recommended, and why."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.serving.bundle import ModelBundle
from recsys.serving.calibration import for_evaluation
from recsys.serving.explain import explain_items
from recsys.serving.histories import UserHistories
from recsys.serving.recommender import Recommender

_LIST = 10
_NEWEST = 6
"""The number of items of a history that are shown."""
_REASONS = 2
"""The number of reasons that are shown."""


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
class Reason:
    """An item of the history that speaks for a recommendation."""

    item: NamedItem
    share: float
    """Its part of all that the history adds or takes, 0 to 1; see `recsys.serving.explain`."""


@dataclass(frozen=True, slots=True)
class Recommended:
    """An item of a list."""

    rank: int
    item: NamedItem
    held_out: bool
    """Is it what the user took next?"""
    in_history: bool
    """Does the history hold it?"""
    reasons: tuple[Reason, ...]
    """The largest reasons first; empty for models whose scores have no parts."""


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

    @property
    def rank(self) -> int | None:
        """The place of the held-out item in the list; None if it is not there."""
        return next((each.rank for each in self.recommended if each.held_out), None)


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
    at = None
    if bundle.times == "request":
        at = int(dataset.timestamps[holdout.positions[row]])
    k = min(_LIST, bundle.num_items)
    best: pl.DataFrame = recommender.recommend(history, k=k, at=at)
    ids = bundle.vocabulary.decode(histories.items).to_list()
    (held_out,) = _decoded(bundle, holdout.targets[row : row + 1])
    owned = set(ids)
    items = best["item_id"].to_list()
    reasons = _reasons(bundle, history, items, at, names)
    return UserExample(
        user_id=str(history.user_ids[0]),
        newest=tuple(names[item] for item in ids[::-1][:_NEWEST]),
        history_length=length,
        held_out=names[held_out],
        recommended=tuple(
            Recommended(
                rank=rank,
                item=names[item],
                held_out=item == held_out,
                in_history=item in owned,
                reasons=why,
            )
            for item, rank, why in zip(items, best["rank"].to_list(), reasons, strict=True)
        ),
    )


def _reasons(
    bundle: ModelBundle,
    history: UserHistories,
    items: Sequence[Any],
    at: int | None,
    names: Mapping[Any, NamedItem],
) -> list[tuple[Reason, ...]]:
    """Return the largest reasons for each item; none of a history without any known item."""
    try:
        explained = explain_items(bundle, history, items, at=at)
    except InputError:
        return [()] * len(items)
    reasons = []
    for parts in explained:
        of_items = parts.group_by("item_id", maintain_order=True).agg(pl.col("share").sum())
        best = of_items.filter(pl.col("share") > 0).sort("share", descending=True).head(_REASONS)
        reasons.append(tuple(Reason(names[item], float(share)) for item, share in best.iter_rows()))
    return reasons


def _decoded(bundle: ModelBundle, tokens: NDArray[np.int32]) -> list[Any]:
    return bundle.vocabulary.decode(tokens).to_list()


def _names(bundle: ModelBundle) -> dict[Any, NamedItem]:
    """Return the items of the catalogue by their ids."""
    table, columns = bundle.item_table, bundle.name_columns
    ids = table["item_id"].to_list()
    texts = table[columns[0]].to_list() if columns else [None] * len(ids)
    return {
        item: NamedItem(str(item), "" if text is None else str(text))
        for item, text in zip(ids, texts, strict=True)
    }
