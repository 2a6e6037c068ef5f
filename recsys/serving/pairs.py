"""The pairs of a user and an item to score, in batches of users."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.data.tables import TableSource, read_table
from recsys.data.vocabulary import Vocabulary
from recsys.inference.scorer import user_batches
from recsys.serving.ids import known_tokens


@dataclass(frozen=True, slots=True, eq=False)
class PairBatch:
    """The pairs of B users with at most C candidates each."""

    users: NDArray[np.int64]
    """Shape [B]: the row of each user in the histories."""
    candidates: NDArray[np.int32]
    """Shape [B, C]: the item tokens of each user, right-padded with PAD."""
    pairs: NDArray[np.int64]
    """Shape [N]: the index of each pair, row by row of `candidates` without PAD."""


@dataclass(frozen=True, slots=True, eq=False)
class UserItemPairs:
    """N pairs of a user and an item, in the caller's order; a pair may occur more than once."""

    users: NDArray[np.int64]
    """Shape [N]: the row of each pair's user in the histories."""
    items: NDArray[np.int32]
    """Shape [N]: the item token of each pair."""

    @classmethod
    def from_raw(
        cls, candidates: TableSource | Sequence[Any], user_ids: pl.Series, catalogue: Vocabulary
    ) -> UserItemPairs:
        """Read pairs in raw ids.

        Args:
            candidates: a table of user_id and item_id; or a list of item ids for all users.
            user_ids: the users of the histories.
            catalogue: the items that can be scored.

        Raises:
            InputError: the table cannot be read, an item is not in the catalogue, or a user is not
                among the histories.
        """
        if isinstance(candidates, Sequence) and not isinstance(candidates, str):
            items = known_tokens(candidates, catalogue, "candidate item", "catalogue")
            users = np.arange(len(user_ids))
            return cls(np.repeat(users, len(items)), np.tile(items, len(users)))
        origin = str(candidates) if isinstance(candidates, str | os.PathLike) else "candidates"
        table = read_table(candidates, ["user_id", "item_id"], origin)
        items = known_tokens(table["item_id"], catalogue, "candidate item", "catalogue")
        tokens = known_tokens(table["user_id"], Vocabulary(user_ids), "user", "histories")
        return cls(tokens.astype(np.int64) - 1, items)

    def batches(self) -> Iterator[PairBatch]:
        """Group the pairs by user, and users with similar numbers of candidates into batches.

        Numbers of candidates are similar if they have as many binary digits, so less than half of a
        batch is padding. B · C is bounded as for a catalogue of C items.

        >>> pairs = UserItemPairs(np.array([4, 0, 4, 2]), np.array([9, 8, 7, 9], dtype=np.int32))
        >>> for batch in pairs.batches():
        ...     print(batch.users, batch.candidates.tolist(), batch.pairs)
        [0 2] [[8], [9]] [1 3]
        [4] [[9, 7]] [0 2]
        """
        order = np.argsort(self.users, kind="stable")
        users, starts, counts = np.unique(self.users[order], return_index=True, return_counts=True)
        digits = np.frexp(counts)[1]
        for size in np.unique(digits):
            similar = np.flatnonzero(digits == size)
            width = int(counts[similar].max())
            for rows in user_batches(len(similar), width):
                batch = similar[rows]
                row, column = np.nonzero(np.arange(width) < counts[batch, None])
                pairs = order[starts[batch][row] + column]
                candidates = np.full((len(batch), width), PAD, dtype=np.int32)
                candidates[row, column] = self.items[pairs]
                yield PairBatch(users[batch], candidates, pairs)
