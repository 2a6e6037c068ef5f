"""The kept columns of a log, which the models of an automatic run read as interaction features."""

from __future__ import annotations

import json
from typing import NamedTuple

import polars as pl

from recsys.data.prepared import PreparedDataset

_MOST_VALUES = 1_000
"""Text with more different values is left out: few interactions would share one."""


class KeptColumn(NamedTuple):
    """A column, and how the models read it."""

    name: str
    kind: str | None
    """The kind of feature; None if it is left out."""
    fault: str = ""
    """Why it is left out."""

    @property
    def setting(self) -> str:
        """The feature as a config would have it, in JSON."""
        if self.kind == "category":
            return json.dumps(self.name, ensure_ascii=False)
        return json.dumps({"kind": self.kind, "column": self.name}, ensure_ascii=False)


def kept_columns(dataset: PreparedDataset) -> tuple[KeptColumn, ...]:
    """Look at the kept columns of the training part."""
    if not dataset.config.keep:
        return ()
    training = dataset.interaction_table.filter(dataset.in_training)
    return tuple(_look_at(training[name]) for name in dataset.config.keep)


def _look_at(column: pl.Series) -> KeptColumn:
    values = column.drop_nulls()
    if values.is_empty():
        return KeptColumn(column.name, None, "it has no value")
    kind = _kind_of(column.dtype)
    if kind is None:
        return KeptColumn(column.name, None, f"a column of {column.dtype} is not read")
    if kind == "categories":
        values = values.explode().drop_nulls().cast(pl.String).str.strip_chars()
    different = values.n_unique()
    if different == 1 and len(values) == len(column):
        return KeptColumn(column.name, None, "it has one value everywhere")
    if kind != "number" and different > min(_MOST_VALUES, len(values) // 2):
        return KeptColumn(column.name, None, f"{different:,} different values are too many")
    return KeptColumn(column.name, kind)


def _kind_of(dtype: pl.DataType) -> str | None:
    if dtype.is_numeric():
        return "number"
    if isinstance(dtype, pl.List):
        return "categories" if dtype.inner == pl.String else None
    return "category" if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean) else None
