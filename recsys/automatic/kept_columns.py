"""The kept columns of a log, which the models of an automatic run read as interaction features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from recsys.config import CategoriesFeature, CategoryFeature, Feature, NumberFeature
from recsys.data.features.columns import COLUMN_CLASSES, ColumnName
from recsys.data.prepared import PreparedDataset
from recsys.data.values import dates_in, numbers_in, present
from recsys.errors import InputError
from recsys.reports.run_page import Choice

_MOST_VALUES = 1_000
"""A column of categories with more different values is left out: few interactions share one."""


class KeptColumn(NamedTuple):
    """A column, and how the models read it."""

    name: str
    feature: Feature | None
    """None if it is left out."""
    fault: str = ""
    """Why it is left out."""


def kept_columns(dataset: PreparedDataset) -> tuple[KeptColumn, ...]:
    """Look at the kept columns: their values in training, and whether all rows can be read."""
    if not dataset.config.keep:
        return ()
    table = dataset.interaction_table
    training = table.filter(dataset.in_training)
    return tuple(_look_at(name, table, training) for name in dataset.config.keep)


def choose_features(kept: Sequence[KeptColumn]) -> Choice:
    """Say which kept columns are read, and how, and why the others are not."""
    read = [
        one.name if one.feature.kind == "category" else f"{one.name} as {one.feature.kind}"
        for one in kept
        if one.feature is not None
    ]
    reasons = ["kept columns describe past interactions"] if read else []
    reasons += [f"{one.name} is left out: {one.fault}" for one in kept if one.feature is None]
    return Choice("model.interaction_features", ", ".join(read) or "none", "; ".join(reasons))


def _look_at(name: str, table: pl.DataFrame, training: pl.DataFrame) -> KeptColumn:
    feature = _feature_of(training[name])
    if feature is None:
        return KeptColumn(name, None, "dates are not read as features")
    kind = COLUMN_CLASSES[type(feature)]
    try:
        kind.read(feature, "interaction", table)
        different = kind.fit(feature, "interaction", training).num_categories
    except InputError as error:
        fault = str(error).removeprefix(f"{ColumnName('interaction', feature)}: ")
        return KeptColumn(name, None, fault)
    if different > _MOST_VALUES or 2 * different > len(training):
        rows = f"{len(training):,} training interactions"
        return KeptColumn(name, None, f"{different:,} different values are too many for {rows}")
    return KeptColumn(name, feature)


def _feature_of(column: pl.Series) -> Feature | None:
    """Return the feature that a column is read as; None for dates.

    Decimals of a text file are text.
    """
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
