"""The protocol of a scorer, all that evaluation needs of a model: scores for histories."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from recsys.data.histories import Float32s, Histories, Int32s, Int64s

Seen = Literal["filter", "allow"]
"""Whether the items of a user's history are excluded from the ranking (filter) or not (allow)."""
TopItems = tuple[Int32s, Float32s]
"""The best item tokens of each user and their scores, both [B, k]."""

ELEMENTS_PER_BATCH = 1 << 22
"""The number of scores held at once, users times catalogue: 16 MiB of float32."""
FEWEST_USERS = 64
"""The users that are scored together however large the catalogue is: its rows are read once."""
MOST_CANDIDATES = 1 / 3
"""The share of the catalogue above which all items are scored, and the candidates picked: all
19,384 items as candidates took 2.1 times as long (target attention), or 11 times (dot product)."""


class Scorer(Protocol):
    """Scores items for histories: the neural models and every baseline do."""

    @property
    def num_items(self) -> int:
        """The number of items, I: item tokens are 1 to I."""
        ...

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        """Score candidates [B, C] after B histories; or the entire catalogue [B, I + 1] if None.

        Scores are float32, higher is better, none NaN; -inf is never recommended. Columns are in
        the order of the candidates, or item tokens, where column 0 (PAD) holds -inf. Rows share no
        memory: the caller may write in them, and restores what was there.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Precomputed scores, as the `Scorer` of the users that they are of."""

    scores: Tensor
    """Shape [B, I + 1]: see `Scorer.score`."""

    @property
    def num_items(self) -> int:
        return self.scores.shape[1] - 1

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        if len(histories) != len(self.scores):
            raise ValueError(f"scores of {len(self.scores)} users, not of {len(histories)}")
        if candidates is None:
            return self.scores
        tokens = torch.from_numpy(candidates.astype(np.int64))
        return self.scores.gather(1, tokens.to(self.scores.device))


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """score(c) = Σ_m w_m · s_m(c), of any scorers of one catalogue: a model and its counts."""

    terms: tuple[tuple[Scorer, float], ...]
    """The scorers and their weights, none 0. The scores are on the device of the first."""

    @classmethod
    def of(cls, terms: Iterable[tuple[Scorer, float]]) -> Scorer:
        """Blend scorers, but those of weight 0; one alone, of weight 1, is the answer itself."""
        helpful = tuple((scorer, weight) for scorer, weight in terms if weight)
        return helpful[0][0] if len(helpful) == 1 and helpful[0][1] == 1 else cls(helpful)

    @property
    def num_items(self) -> int:
        return self.terms[0][0].num_items

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        (first, weight), *others = self.terms
        scores = first.score(histories, candidates)
        scores = scores if weight == 1 else scores * weight
        for scorer, weight in others:
            added = scorer.score(histories, candidates).to(scores.device)
            scores = scores.add(added, alpha=weight)
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class ReportingScorer:
    """Scores of another scorer, with a report of the number of histories at each call."""

    scorer: Scorer
    report: Callable[[int], object]

    @property
    def num_items(self) -> int:
        return self.scorer.num_items

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        scores = self.scorer.score(histories, candidates)
        self.report(len(histories))
        return scores


def users_per_batch(num_items: int) -> int:
    """The number of users whose scores of the entire catalogue are held at once."""
    return max(FEWEST_USERS, ELEMENTS_PER_BATCH // (num_items + 1))


def user_batches(num_users: int, num_items: int) -> Iterator[slice]:
    """Yield slices of `users_per_batch` users.

    >>> list(user_batches(150, num_items=1 << 21))
    [slice(0, 64, None), slice(64, 128, None), slice(128, 150, None)]
    """
    size = users_per_batch(num_items)
    for start in range(0, num_users, size):
        yield slice(start, min(start + size, num_users))


def batches_of_similar_length(lengths: Int64s, max_tokens: int, max_rows: int) -> Iterator[Int64s]:
    """Yield the indices of histories, shortest first, in batches of limited tokens and rows.

    Padding counts as tokens; a history longer than the limit is a batch of its own.

    >>> batches = batches_of_similar_length(np.array([5, 1, 3, 1]), max_tokens=4, max_rows=10)
    >>> [batch.tolist() for batch in batches]
    [[1, 3], [2], [0]]
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        # Lengths only grow, so the last history of a batch sets its width.
        widths = lengths[order[start : start + max_rows]]
        fit = np.searchsorted(widths * np.arange(1, len(widths) + 1), max_tokens, side="right")
        stop = start + max(1, int(fit))
        yield order[start:stop]
        start = stop
