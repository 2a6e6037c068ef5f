"""What evaluation knows of a model: it turns histories into scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.histories import Histories

ELEMENTS_PER_BATCH = 1 << 22
"""Scores held at once, users times catalogue: 16 MiB of float32."""
FEWEST_USERS = 64
"""Users that go through together however large the catalogue is, 256 MB of scores for a million
items: its embeddings are read once for all of them."""


class Scorer(Protocol):
    """Anything that scores items for histories: the neural models and every baseline."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I: item tokens are 1 to I."""
        ...

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """Float32 scores, higher is better, none of them NaN; -inf: never to be recommended.

        Args:
            histories: of B users.
            candidates: item tokens [B, C], or None for the whole catalogue.

        Returns:
            [B, C], in the order of the candidates; or [B, I + 1] for the whole catalogue, where
            the column is the item token and column 0 (PAD) holds -inf. Rows share no memory:
            who asked may write in them, and puts back what was there.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Scores that were made already, as the `Scorer` of the users they were made for."""

    scores: torch.Tensor
    """[B, I + 1]."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.scores.shape[1] - 1

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """See `Scorer.score`; for all the users at once."""
        if len(histories) != len(self.scores):
            raise ValueError(f"scores of {len(self.scores)} users, asked for {len(histories)}")
        if candidates is None:
            return self.scores
        tokens = torch.from_numpy(candidates.astype(np.int64))
        return self.scores.gather(1, tokens.to(self.scores.device))


def users_per_batch(num_items: int) -> int:
    """How many users' scores over the whole catalogue are held at once.

    >>> users_per_batch(4095), users_per_batch(10**6)
    (1024, 64)
    """
    return max(FEWEST_USERS, ELEMENTS_PER_BATCH // (num_items + 1))


def user_batches(num_users: int, num_items: int) -> Iterator[slice]:
    """Runs of users whose scores over the whole catalogue are held at once.

    >>> list(user_batches(150, num_items=1 << 21))
    [slice(0, 64, None), slice(64, 128, None), slice(128, 150, None)]
    """
    size = users_per_batch(num_items)
    for start in range(0, num_users, size):
        yield slice(start, min(start + size, num_users))
