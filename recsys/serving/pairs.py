"""The pairs of a user and an item to score, in batches of users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError
from recsys.inference.scorer import user_batches
from recsys.serving.candidates import RawCandidates
from recsys.serving.ids import report_unknown


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
    rows: NDArray[np.int64] | None = None
    """Shape [N]: the row of each pair in the table of candidates; None if it has several pairs."""

    @classmethod
    def from_raw(
        cls,
        candidates: RawCandidates,
        user_ids: pl.Series,
        catalogue: Vocabulary,
        *,
        strict: bool = False,
    ) -> UserItemPairs:
        """Turn candidates in raw ids into pairs.

        Args:
            candidates: the items, for each user or for all.
            user_ids: the users of the histories.
            catalogue: the items that can be scored.
            strict: refuse an unknown item or user. Else those are left out, and a warning counts
                and names the first few; candidates of which none is known are refused anyway.

        Raises:
            InputError: an item or a user is unknown; or there is not one list for each history.
        """
        items = candidates.items
        tokens = catalogue.encode(items)
        place = "catalogue"
        known = report_unknown(tokens, items, catalogue, "candidate item", place, strict=strict)
        if candidates.offsets is not None:
            if len(candidates.offsets) - 1 != len(user_ids):
                raise InputError(
                    f"candidates: {len(candidates.offsets) - 1} lists for {len(user_ids)} users: "
                    "give one list of items for all users, or one list for each"
                )
            rows = np.repeat(np.arange(len(user_ids)), np.diff(candidates.offsets))
            return cls(rows[known], tokens[known])
        if candidates.users is None:
            tokens, users = tokens[known], np.arange(len(user_ids))
            only = np.flatnonzero(known) if len(users) == 1 else None
            return cls(np.repeat(users, len(tokens)), np.tile(tokens, len(users)), only)
        given, vocabulary = candidates.users, Vocabulary(user_ids)
        rows = vocabulary.encode(given).astype(np.int64)
        known &= report_unknown(rows, given, vocabulary, "user", "histories", strict=strict)
        return cls(rows[known] - 1, tokens[known], np.flatnonzero(known))

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
