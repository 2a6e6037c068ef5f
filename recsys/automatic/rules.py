"""The rule that turns facts about a log into its split, and into the settings that are raced.

Sizes follow from the facts; the race decides on the kind of model. The rule never reads a held-out
purchase; docs/results.md has the measurements that it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config.data import DataConfig, GlobalTime, Split
from recsys.config.experiment import Experiment, TrackingConfig
from recsys.config.files import parse_experiment
from recsys.config.model import Feature
from recsys.data.database import dates_in, numbers_in, present
from recsys.data.features import COLUMN_CLASSES, FeatureCells
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import cut_points
from recsys.data.times import fitting_forms
from recsys.errors import InputError
from recsys.reports.run_page import Choice

Preset = Literal["fast", "balanced", "best"]

TIME_LIMITS: dict[Preset, float] = {"fast": 300.0, "balanced": 900.0, "best": 3600.0}
"""Seconds of each preset if no limit is given."""
_NUM_KINDS = {"fast": 2, "balanced": 4, "best": 5}
_LENGTHS = (10, 20, 30, 50, 75, 100, 150, 200)
"""Items of a history that models may read."""
_SEQUENCE_NUMBER_STEPS = 3
"""Times whose differences within a user take at most this many values are sequence numbers."""
_MOST_VALUES = 1_000
"""A kept column of categories with more different values is refused: few interactions share one."""
_ITEMS_PER_VALUE, _MOST_IN_A_LIST = 4, 50
"""Items for each value of a column of the item table that models read, and values of an item."""
_NEEDED = 4
"""Interactions of a user with two held out and a pair to learn from."""
BY_DATE = Choice(
    "data.split",
    "global_time",
    f"few users have {_NEEDED} interactions, which leaving two of each out needs: the latest "
    "interactions of all users are held out",
)
_FEW, _FEW_USERS, _LEAST_SHARE = 100, 0.1, 0.02
"""Targets below which chance decides between models, as a number and as shares of the users of a
small log and of a large one."""
_CLEARLY, _TRAINED_ON = 2, 0.5
"""The split by date must have so many times as many targets, and leave this share to train on."""
_REPEATS = 0.05
"""From this share of repeated items on, seen items are recommended."""
_MOST_OF_THE_LOG = 0.5
"""If the newest items of the histories are fewer than this share, the older ones are trained on."""
_MANY_INTERACTIONS, _FEW_INTERACTIONS = 400_000, 30_000
_SPARSE, _DENSE = 40, 100
"""Interactions per item below which embeddings overfit soon, and above which they hardly do."""
_FULL_SOFTMAX_ITEMS = 60_000
"""The largest catalogue whose full softmax is worth its cost on a CPU."""
_STEPS_PER_PASS = 128
_HSTU, _AVERAGE, _GATED, _SUM, _DOT = (
    *("hstu", "target-attention-average", "gated-rotary", "target-attention", "dot-product"),
)
_DENSE_ORDER = (_HSTU, _AVERAGE, _GATED, _SUM, _DOT)
_SPARSE_ORDER = (_DOT, _SUM, _HSTU, _GATED, _AVERAGE)
_REPEAT_ORDER = (_AVERAGE, _HSTU, _GATED, _SUM, _DOT)
"""The kinds of model, those first that won on logs with many, or few, interactions per item, and on
logs with repeats: a short race is run by the first alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an automatic run is told; all else follows from the log."""

    name: str
    """Of the MLflow run; those of the baselines are called NAME-BASELINE."""
    preset: Preset = "balanced"
    """How many kinds of model are raced."""
    seed: int = 0
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    fresh: bool = False
    """Whether to forget a run of that name that was interrupted."""
    command: str = "recsys.fit(…)"
    """Makes the page of the run again."""

    @property
    def out(self) -> Path:
        """The folder of the results."""
        return Path("runs") / self.name

    @property
    def beaten(self) -> Path:
        """The folder of the model, if a baseline is better."""
        return Path("runs") / f"{self.name}-model"


# --- The split -----------------------------------------------------------------------------------


def choose_split(timestamps: NDArray[np.int64], offsets: NDArray[np.int64]) -> Split | None:
    """Return the split by date if the usual one has too few users, and it has clearly more.

    Timestamps [N] ascend for each user, from offsets [U + 1] on.
    """
    users, split = len(offsets) - 1, GlobalTime()
    usual = int(np.count_nonzero(np.diff(offsets) >= _NEEDED))
    least = max(min(_FEW, _FEW_USERS * users), _LEAST_SHARE * users)
    if usual >= least or pl.Series(np.asarray(timestamps[offsets[:-1]])).n_unique() == 1:
        return None
    try:
        first, second, last = cut_points(split, timestamps, offsets).T
    except InputError:
        return None
    valid = np.count_nonzero((first > 0) & (second > first))
    test = np.count_nonzero((second > 0) & (last > second))
    is_better = min(valid, test) >= max(least, _CLEARLY * usual)
    return split if is_better and first.sum() >= _TRAINED_ON * len(timestamps) else None


# --- Facts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the training part of a log looks like, with the catalogue of the validation part."""

    items: int
    interactions: int
    long_length: float
    """98% of the users with two interactions or more have at most so many."""
    repeat_share: float
    """Share of a user's interactions, the first excepted, with an item that the user had before."""
    has_times: bool
    """Whether the times are more than sequence numbers."""
    newest_share: float = 1.0
    """Share of the interactions that the longest histories of models would hold."""
    features: tuple[Feature, ...] = ()
    """The kept columns of the log, which the models read."""
    item_features: tuple[Feature, ...] = ()
    """The columns of the item table that they read."""

    @property
    def interactions_per_item(self) -> float:
        """The mean."""
        return self.interactions / max(self.items, 1)

    @classmethod
    def of(cls, dataset: PreparedDataset) -> LogFacts:
        """Read the facts from the training part of a prepared dataset.

        Raises:
            InputError: a kept column cannot be read in all rows, or tells nothing.
        """
        histories = dataset.histories("valid")
        lengths = histories.lengths
        learnable = lengths[lengths >= 2]
        later = len(histories.items) - int(np.count_nonzero(lengths))
        pairs = pl.DataFrame({"user": histories.users, "item": histories.items}).n_unique()
        return cls(
            items=dataset.num_items,
            interactions=len(histories.items),
            long_length=float(np.percentile(learnable, 98)) if len(learnable) else 0.0,
            repeat_share=(len(histories.items) - pairs) / max(later, 1),
            has_times=_has_times(histories),
            newest_share=float(np.minimum(lengths, _LENGTHS[-1]).sum() / max(lengths.sum(), 1)),
            features=tuple(_read_column(name, dataset) for name in dataset.config.keep),
            item_features=tuple(_categories_of(dataset.item_table)),
        )


def _has_times(histories: Histories) -> bool:
    if histories.times is None:
        return False
    within = histories.users[1:] == histories.users[:-1]
    return pl.Series(np.diff(histories.times)[within]).n_unique() > _SEQUENCE_NUMBER_STEPS


def _read_column(name: str, dataset: PreparedDataset) -> Feature:
    """Return how the models read a kept column, by its values in training."""
    table = dataset.interaction_table
    training = table.filter(dataset.in_training)
    column, values = training[name], present(training[name])
    feature = Feature(kind="number", column=name)
    if column.dtype.is_nested():
        feature = Feature(kind="categories", column=name)
    elif not column.dtype.is_numeric():
        numbers = numbers_in(values)  # integers that are text are codes, such as 007
        if numbers.dtype != pl.Float64 or numbers.null_count():
            feature = Feature(column=name)
    reader = COLUMN_CLASSES[feature.kind]
    reader.read(FeatureCells("interaction", feature, table))
    different = reader.fit(FeatureCells("interaction", feature, training)).num_categories
    are_dates = feature.kind == "category" and not dates_in(values).null_count()
    if are_dates or different > min(_MOST_VALUES, len(training) / 2):
        raise InputError(
            f"keep: {name}: {different:,} different values in {len(training):,} training "
            "interactions: a model reads numbers, and few values that are no dates"
        )
    return feature


def _categories_of(items: pl.DataFrame) -> Iterator[Feature]:
    """Yield the columns of text, or lists of it, whose values are shared by items.

    Numbers and dates are left out: sales, ratings or the last sale often tell what came after the
    cut. So are long lists, since all items take the room of the longest.
    """
    for name, dtype in items.drop("item_id", "count", strict=False).schema.items():
        is_text = getattr(dtype, "inner", dtype) in (pl.String, pl.Categorical, pl.Enum)
        if is_text and _are_kinds(items[name]):
            feature = Feature(kind="categories" if dtype.is_nested() else "category", column=name)
            with suppress(InputError):  # it tells no items apart, or no two share a value
                fitted = COLUMN_CLASSES[feature.kind].fit(FeatureCells("item", feature, items))
                if fitted.num_categories <= min(_MOST_VALUES, len(items) / _ITEMS_PER_VALUE):
                    yield feature


def _are_kinds(column: pl.Series) -> bool:
    """Return whether text is neither numbers nor dates, or lists of text are short."""
    if column.dtype.is_nested():
        return not (column.list.len() > _MOST_IN_A_LIST).any()
    values = present(column)
    others = min(read(values).null_count() for read in (numbers_in, dates_in))
    return others > len(values) / 2 and not fitting_forms(values)


# --- Settings ------------------------------------------------------------------------------------

_FEATURES, _ITEM_FEATURES = "model.interaction_features", "model.item_features"


def choose_settings(facts: LogFacts) -> list[Choice]:
    """Choose what all kinds share: the protocol, sizes and training; name the features."""
    seen, counted = "filter", "items of the history are left out"
    if facts.repeat_share >= _REPEATS:
        seen, counted = "allow", "repeats are recommended and counted"
    repeats = f"{facts.repeat_share:.1%} of the later interactions repeat an item of the user"
    length = next((n for n in _LENGTHS if n >= facts.long_length), _LENGTHS[-1])
    longest = f"98% of the users have at most {facts.long_length:.0f} interactions"
    number, density, dim = facts.interactions, facts.interactions_per_item, 64
    if number >= _MANY_INTERACTIONS and density >= _SPARSE:
        dim = 128
    elif number < _FEW_INTERACTIONS:
        dim = 48
    is_soft = density < _SPARSE and facts.items <= _FULL_SOFTMAX_ITEMS
    dropout = 0.4 if is_soft else 0.5 if density < _SPARSE else 0.35 if density < _DENSE else 0.25
    few = f"{density:.0f} interactions per item"
    tokens = min(max(2 ** round(math.log2(max(number, 1) / _STEPS_PER_PASS)), 512), 4096)
    steps = f"about {_STEPS_PER_PASS} steps per pass over the log where possible"
    choices = [
        Choice("evaluation.seen", seen, f"{repeats}: {counted}"),
        Choice("model.max_sequence_length", str(length), longest),
        Choice("model.embedding_dim", str(dim), f"{number:,} interactions"),
        Choice("model.dropout", str(dropout), few),
        Choice("training.batch_tokens", str(tokens), steps),
        Choice("training.learning_rate", "0.004", "constant: weights are averaged"),
    ]
    if is_soft:
        choices.append(Choice("training.soft_labels", "0.5", few))
    if facts.newest_share < _MOST_OF_THE_LOG:
        newest = f"the newest {_LENGTHS[-1]} interactions of each user are"
        older = f"{newest} {facts.newest_share:.0%} of all: the older ones are trained on, too"
        choices.append(Choice("training.windows", "all", older))
    if facts.items > _FULL_SOFTMAX_ITEMS:
        loss = "{kind: sampled_softmax, num_negatives: 2048}"
        costly = f"{facts.items:,} items: the softmax over all of them costs too much"
        choices.append(Choice("training.loss", loss, costly))
    for setting, features, reason in (
        (_FEATURES, facts.features, "kept columns describe past interactions"),
        (_ITEM_FEATURES, facts.item_features, "values of the item table that items share"),
    ):
        if features:
            read = ", ".join(f"{feature.column} as {feature.kind}" for feature in features)
            choices.append(Choice(setting, read, reason))
    return choices


class Kind(NamedTuple):
    """A kind of model with the settings that it is raced with."""

    name: str
    description: str
    cost: float
    """Time of a step, in steps of the dot product, about: it decides how many can be raced."""
    experiment: Experiment


def propose(
    facts: LogFacts, settings: Sequence[Choice], data: DataConfig, plan: Plan
) -> list[Kind]:
    """Return the kinds of model of a race with their settings, the most likely to win first."""
    features = {_FEATURES: facts.features, _ITEM_FEATURES: facts.item_features}
    overrides = [f"{name}={value}" for name, value, _ in settings if name not in features]
    read = {name.removeprefix("model."): columns for name, columns in features.items()}
    order = _DENSE_ORDER if facts.interactions_per_item >= _SPARSE else _SPARSE_ORDER
    if facts.repeat_share >= _REPEATS:
        order = _REPEAT_ORDER
    models, kinds = _models(facts), []
    for name in order[: _NUM_KINDS[plan.preset]]:
        description, cost, model = models[name]
        training = {
            "refit": True,
            # Seen items kept in the loss: better for a filtered dot product, worse for the others.
            "exclude_seen": False if name == _DOT and model.get("filter") else None,
            "decay_fraction": 0.0,  # a training may pause and end after any epoch
            "average_weights": True,
        }
        tree = {
            "name": plan.name,
            "seed": plan.seed,
            "data": data,
            "model": {**model, **read},
            "training": training,
            "count_ensemble": {},
            "tracking": plan.tracking,
        }
        kinds.append(Kind(name, description, cost, parse_experiment(tree, overrides, name)))
    return kinds


def _models(facts: LogFacts) -> dict[str, tuple[str, float, dict[str, Any]]]:
    """Return description, cost and model section (without sizes) of each kind, by its name."""
    repeats, sparse = facts.repeat_share >= _REPEATS, facts.interactions_per_item < _SPARSE
    blocks: dict[str, Any] = {"num_blocks": 2, "num_heads": 2}
    transformer = {**blocks, "feed_forward_dim": 256}
    gated = {**transformer, "norm": "gated", "activation": "swiglu", "positions": "rotary"}
    filtered = ", with a filter beside attention," * sparse
    plain = {**transformer, "norm": "post", "filter": True} if sparse else transformer
    dot, attention = {"kind": "dot_product"}, {"kind": "target_attention", "head_dim": 32}
    summed = {**attention, "num_heads": 1, "pooling": "sum", "half_life": 50 if repeats else 3}
    averaged = {**attention, "num_heads": 2, "half_life": (2, 20)}
    times = "past" if facts.has_times else "none"
    hstu = {**blocks, "kind": "hstu", "times": times, "head": dot}
    read = " that read the times between interactions" * facts.has_times
    summing = f"SASRec's encoder{filtered} with target attention, summed over the history"
    averaging = "SASRec's encoder with target attention, averaged over the history"
    return {
        _HSTU: (f"HSTU blocks{read}", 1.1, hstu),
        _SUM: (summing, 2.3, {**transformer, "filter": sparse, "head": summed}),
        _GATED: ("gated blocks with rotary positions, dot product", 1.2, {**gated, "head": dot}),
        _AVERAGE: (averaging, 3.5, {**transformer, "head": averaged}),
        _DOT: (f"SASRec: encoder{filtered} and dot product", 1.0, {**plain, "head": dot}),
    }
