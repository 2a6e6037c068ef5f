"""Facts about a log, from which its split and the settings of its models follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.config import (
    CategoriesFeature,
    CategoryFeature,
    Feature,
    GlobalTime,
    NumberFeature,
    Split,
)
from recsys.data.database import dates_in, memory_limit, numbers_in, present
from recsys.data.features import COLUMN_CLASSES, FeatureCells
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import cut_points
from recsys.errors import InputError
from recsys.machine import usable_processors
from recsys.reports.run_page import Choice

LONGEST = 200
"""The most items of a history that models of automatic runs read."""
_SEQUENCE_NUMBER_STEPS = 3
"""Times whose differences within a user take at most this many values are sequence numbers."""
_MOST_VALUES = 1_000
"""A column of categories with more different values is left out: few interactions share one."""
_FEW, _FEW_USERS, _LEAST_SHARE = 100, 0.1, 0.02
"""Targets below which chance decides between models; a small log may have a tenth of its users, and
a large one must have this share of them: those with the most interactions are unlike the others."""
_NEEDED = 4
"""Interactions of a user with two held out and a pair to learn from."""
_CLEARLY, _TRAINED_ON = 2, 0.5
"""The split by date must have so many times as many targets, and leave this share of the
interactions for training."""


class KeptColumn(NamedTuple):
    """A kept column of the log, and how the models read it."""

    name: str
    feature: Feature | None
    """None if it is left out."""
    fault: str = ""
    """Why it is left out."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the training part of a log looks like.

    Of the validation part only the size of the catalogue is known, of the test part nothing; but
    the values of a kept column must be readable in all of them.
    """

    users: int
    """Users with at least two interactions, of which a model can learn."""
    items: int
    """Size of the catalogue."""
    interactions: int
    long_length: float
    """The 98th percentile of their number of interactions."""
    repeat_share: float
    """Share of a user's interactions, the first excepted, with an item that the user had before."""
    has_times: bool
    """Whether the times are more than sequence numbers."""
    newest_share: float = 1.0
    """Share of the interactions that are among the newest `LONGEST` of their user."""
    kept: tuple[KeptColumn, ...] = ()

    @property
    def interactions_per_item(self) -> float:
        """Mean number of interactions of an item."""
        return self.interactions / max(self.items, 1)

    @property
    def features(self) -> list[Feature]:
        """The kept columns that the models read."""
        return [column.feature for column in self.kept if column.feature is not None]

    @classmethod
    def of(cls, dataset: PreparedDataset) -> LogFacts:
        """Read the facts from the training part of a prepared dataset."""
        histories, kept = dataset.histories("valid"), tuple[KeptColumn, ...]()
        if dataset.config.keep:
            table = dataset.interaction_table
            training = table.filter(dataset.in_training)
            kept = tuple(_kept_column(name, table, training) for name in dataset.config.keep)
        lengths = histories.lengths
        learnable = lengths[lengths >= 2]
        return cls(
            users=len(learnable),
            items=dataset.num_items,
            interactions=len(histories.items),
            long_length=float(np.percentile(learnable, 98)) if len(learnable) else 0.0,
            repeat_share=_repeat_share(histories),
            has_times=_has_times(histories),
            newest_share=float(np.minimum(lengths, LONGEST).sum() / max(lengths.sum(), 1)),
            kept=kept,
        )


def describe_machine() -> str:
    """Return the processors or the GPU, and the memory, in one line."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    processors = gpu or f"{usable_processors()} processors"
    return f"{processors}, {memory_limit() / 2**30:.0f} GiB of memory"


def _has_times(histories: Histories) -> bool:
    if histories.times is None:
        return False
    within = histories.users[1:] == histories.users[:-1]
    steps = pl.Series(np.diff(histories.times)[within])
    return steps.n_unique() > _SEQUENCE_NUMBER_STEPS


def _repeat_share(histories: Histories) -> float:
    later = len(histories.items) - int(np.count_nonzero(histories.lengths))
    pairs = pl.DataFrame({"user": histories.users, "item": histories.items}).n_unique()
    return (len(histories.items) - pairs) / max(later, 1)


def _kept_column(name: str, table: pl.DataFrame, training: pl.DataFrame) -> KeptColumn:
    """Look at the values of a column in training, and whether all rows can be read."""
    feature = _feature_of(training[name])
    if feature is None:
        return KeptColumn(name, None, "dates are not read as features")
    reader = COLUMN_CLASSES[type(feature)]
    try:
        reader.read(FeatureCells("interaction", feature, table))
        different = reader.fit(FeatureCells("interaction", feature, training)).num_categories
    except InputError as error:
        fault = str(error).removeprefix(f"{FeatureCells('interaction', feature, table).name}: ")
        return KeptColumn(name, None, fault)
    if different > _MOST_VALUES or 2 * different > len(training):
        rows = f"{len(training):,} training interactions"
        return KeptColumn(name, None, f"{different:,} different values are too many for {rows}")
    return KeptColumn(name, feature)


def _feature_of(column: pl.Series) -> Feature | None:
    """Return the feature that a column is read as; None for dates."""
    if column.dtype.is_nested():
        return CategoriesFeature(kind="categories", column=column.name)
    if column.dtype.is_numeric():
        return NumberFeature(kind="number", column=column.name)
    values = present(column)
    numbers = numbers_in(values)  # integers that are text are codes, such as 007
    if numbers.dtype == pl.Float64 and not numbers.null_count():
        return NumberFeature(kind="number", column=column.name)
    if len(values) and not dates_in(values).null_count():
        return None
    return CategoryFeature(column=column.name)


def choose_split(timestamps: NDArray[np.int64], offsets: NDArray[np.int64]) -> Split | None:
    """Return the split by date if the usual one, leaving the last items out, has too few users.

    That needs four interactions of a user; the customers of many shops have two. The split by date
    needs one before the date and one after it, and times that do not begin anew with every user.
    None if it is not clearly better. Timestamps [N] ascend for each user, from offsets [U + 1] on.
    """
    users = len(offsets) - 1
    usual = _learnable(offsets)
    least = max(min(_FEW, _FEW_USERS * users), _LEAST_SHARE * users)
    if usual >= least or pl.Series(np.asarray(timestamps[offsets[:-1]])).n_unique() == 1:
        return None
    split = GlobalTime()
    try:
        first, second, last = cut_points(split, timestamps, offsets).T
    except InputError:
        return None
    valid = np.count_nonzero((first > 0) & (second > first))
    test = np.count_nonzero((second > 0) & (last > second))
    is_better = min(valid, test) >= max(least, _CLEARLY * usual)
    return split if is_better and first.sum() >= _TRAINED_ON * len(timestamps) else None


def explained(split: Split, offsets: NDArray[np.int64]) -> Choice:
    """Return the split that was chosen, with the reason."""
    reason = (
        f"{_learnable(offsets):,} of {len(offsets) - 1:,} users have {_NEEDED} interactions, which "
        "leaving two of each out needs: the latest interactions of all users are held out"
    )
    return Choice("data.split", split.kind, reason)


def _learnable(offsets: NDArray[np.int64]) -> int:
    return int(np.count_nonzero(np.diff(offsets) >= _NEEDED))
