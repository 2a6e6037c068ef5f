"""The mapping between item ids, used outside, and item tokens, used inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from narwhals.typing import IntoSeries
from numpy.typing import ArrayLike, NDArray

from recsys.data.histories import PAD, Int32s

_FEW = 1_000
"""Ids that are looked up one by one."""


@dataclass(frozen=True)
class Vocabulary:
    """The catalogue of I items: item token t, from 1 to I, is the item ``ids[t - 1]``.

    >>> vocabulary = Vocabulary(pl.Series(["boots", "gloves"]))
    >>> vocabulary.encode(["gloves", "hat", "boots"])
    array([2, 0, 1], dtype=int32)
    >>> vocabulary.decode([2, 1]).to_list()
    ['gloves', 'boots']
    """

    ids: pl.Series
    """Shape [I]: unique item ids, int64 or text."""

    def __len__(self) -> int:
        """The number of items, I."""
        return len(self.ids)

    def encode(self, ids: IntoSeries | Sequence[Any] | NDArray[Any]) -> Int32s:
        """Return item tokens [N] of item ids [N]; PAD for an id outside the catalogue.

        Integers and text are compared as text: 12 equals "12", but not "012".
        """
        wanted = pl.Series(ids) if len(ids) else self.ids.head(0)
        own = wanted.cast(self.ids.dtype, strict=False)
        if own.dtype.is_integer() and not wanted.dtype.is_integer():  # "012" is no id, nor "+12"
            own = own.set(own.cast(pl.String) != wanted.cast(pl.String), None)
        if len(own) <= _FEW:  # a join reads all ids that are known
            return np.array([self._tokens.get(item, PAD) for item in own.to_list()], dtype=np.int32)
        tokens = pl.int_range(1, len(self) + 1, dtype=pl.Int32, eager=True)
        encoded = own.replace_strict(self.ids, tokens, default=PAD, return_dtype=pl.Int32)
        return encoded.to_numpy().copy()

    @cached_property
    def _tokens(self) -> dict[int | str, int]:
        return {item: token for token, item in enumerate(self.ids.to_list(), start=1)}

    def decode(self, tokens: ArrayLike) -> pl.Series:
        """Return item ids [N] of item tokens [N]; null for PAD, IndexError for other tokens."""
        rows = np.asarray(tokens, dtype=np.int64).ravel() - 1
        if rows.size and not (rows.min() >= -1 and rows.max() < len(self)):
            raise IndexError(
                f"item tokens must be 0 to {len(self)}, not {rows.min() + 1} to {rows.max() + 1}"
            )
        return self.ids.gather(pl.Series(rows).replace(PAD - 1, None))
