"""Which items may be recommended, and how diverse lists are: by ids and by columns of the items."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from recsys.config import Columns
from recsys.data.histories import PAD
from recsys.data.where import keep_where
from recsys.errors import InputError, did_you_mean
from recsys.inference.diversity import UNGROUPED, Cap, Diversity
from recsys.serving.bundle import ModelBundle
from recsys.serving.candidates import Candidates, allowed_items

_TABLE = "the item table"


def chosen_items(
    bundle: ModelBundle, allow: Candidates | None, deny: Candidates | None, where: str | None
) -> NDArray[np.bool_] | None:
    """Return whether each item token may be recommended [I + 1]; None if all may.

    Args:
        bundle: the catalogue, with the columns of the items.
        allow: the only items to recommend, if any are given.
        deny: items that are not recommended; those outside the catalogue never are.
        where: a condition over the columns of the item table; see `keep_where`.

    Raises:
        InputError: the items cannot be read, or none of ``allow`` is in the catalogue; the
            condition cannot be read, names an unknown column, or holds for no item.
    """
    columns = bundle.experiment.data.columns or Columns()
    allowed = allowed_items(allow, deny, columns, bundle.vocabulary)
    if where is None:
        return allowed
    meets = np.zeros(bundle.num_items + 1, dtype=bool)
    meets[items_where(bundle.item_table, where)] = True
    return meets if allowed is None else allowed & meets


def items_where(items: pl.DataFrame, where: str) -> NDArray[np.int64]:
    """Return the tokens of the items for which a condition holds, ascending.

    Raises:
        InputError: see `chosen_items`.

    >>> hats = pl.DataFrame({"item_id": ["beret", "bowler"], "price": [20, 90]})
    >>> items_where(hats, "price < 80").tolist()
    [1]
    """
    numbered = items.with_row_index("__item", offset=PAD + 1)
    try:
        kept, _ = keep_where(numbered, where, _TABLE, items.columns)
        if not len(kept):
            raise InputError(f"where {where!r}: holds for none of the {len(items):,} items")
    except InputError as error:  # the language is that of data.where, the setting is not
        raise InputError(str(error).removeprefix("data.")) from error
    return kept["__item"].to_numpy().astype(np.int64)


def chosen_diversity(
    bundle: ModelBundle, weight: float | None, at_most: Mapping[str, int] | None
) -> Diversity | None:
    """Return how lists are made diverse; None if by their scores alone.

    Args:
        bundle: the model whose embeddings are compared, and the columns of the items.
        weight: the weight of dissimilarity, 0 to 1; none if None.
        at_most: for columns of the item table, how many items with the same value a list may have;
            items without a value are not counted.

    Raises:
        InputError: the weight is not between 0 and 1, or the bundle holds a baseline, which has no
            embeddings; a column is unknown or holds lists; a number is below 1.
    """
    if weight is not None and not 0 <= weight <= 1:
        raise InputError(f"diversity={weight}: must be from 0 to 1")
    caps = tuple(_cap(bundle.item_table, *cap) for cap in (at_most or {}).items())
    if not weight:
        return Diversity(caps=caps) if caps else None
    with torch.inference_mode():
        directions = normalize(bundle.model.items.table().float(), dim=1).cpu().numpy()
    return Diversity(weight, directions, caps)


def _cap(items: pl.DataFrame, column: str, most: int) -> Cap:
    if column not in items.columns:
        known = f"the columns of {_TABLE} are {', '.join(items.columns)}"
        raise InputError(
            f"at_most: no column {column!r}{did_you_mean(column, items.columns)}; {known}"
        )
    if most < 1:
        raise InputError(f"at_most: {column}={most}: must be at least 1")
    values = items[column]
    if values.dtype.is_nested():
        raise InputError(f"at_most: column {column!r} of {_TABLE} holds {values.dtype}, not values")
    groups = values.rank("dense").cast(pl.Int64).fill_null(UNGROUPED).to_numpy()
    return Cap(np.concatenate([[UNGROUPED], groups]), most)
