"""The best items by way of an approximate index, with exact scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD, Histories
from recsys.inference.item_index import ItemIndex
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import NotANumberError, top_k
from recsys.inference.scorer import Scorer, Seen

_USERS = 256
"""The users that are searched for together."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexedScorer:
    """The scores of another scorer; its best items are found by an index. A `RankingScorer`.

    Which items are found is approximate, their scores and order are exact. Where the index finds
    too few items for a user, because the others were seen or are not allowed, the exact scorer
    answers.
    """

    exact: Scorer
    """Answers users whom the index cannot."""
    ranker: Scorer
    """Scores the items that were found."""
    encoder: ModelScorer
    """Turns histories into the queries of the index."""
    index: ItemIndex
    retrieve: int | None = None
    """How many items are found for the ranker; if None, the k that are wanted."""
    allowed: NDArray[np.bool_] | None = None
    """Shape [I + 1]: whether each item token may be found; if None, all may."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.exact.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; exact."""
        return self.exact.score(histories, candidates)

    def top_k(
        self, histories: Histories, k: int, seen: Seen
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """See `top_k`."""
        items = np.full((len(histories), k), PAD, dtype=np.int32)
        values = np.full((len(histories), k), -np.inf, dtype=np.float32)
        answered = np.zeros(len(histories), dtype=bool)
        count = min(k if self.retrieve is None else self.retrieve, self.num_items)
        for rows in () if self._few_allowed else _together(histories.lengths):
            found = self._find(histories.take(rows), count, seen)
            full = (found != PAD).all(axis=1)
            done = rows[full]
            if len(done):
                best = slice(min(k, count))
                items[done, best], values[done, best] = self._rank(
                    histories.take(done), found[full], k
                )
            answered[done] = True
        left = np.flatnonzero(~answered)
        if len(left):
            items[left], values[left] = top_k(self.exact, histories.take(left), k, seen)
        return items, values

    @property
    def _few_allowed(self) -> bool:
        """Whether no more items are allowed than a search reads: scoring all of them costs less."""
        if self.allowed is None:
            return False
        return int(np.count_nonzero(self.allowed)) <= self.index.items_read

    def _find(self, histories: Histories, count: int, seen: Seen) -> NDArray[np.int32]:
        """Find items [B, N] that may be recommended, in any order; PAD where there are fewer."""
        queries = self.encoder.states(histories).float().cpu().numpy()
        if seen == "allow":
            return self.index.find(queries, count, self.allowed)
        width = self.num_items + 1
        known = np.unique(histories.users * width + histories.items)
        more = np.bincount(known // width, minlength=len(histories)).max()
        most = min(count + int(more), self.num_items)
        found = self.index.find(queries, most, self.allowed)
        pairs = np.arange(len(histories))[:, None] * width + found
        found[np.isin(pairs, known)] = PAD
        order = np.argsort(found == PAD, axis=1, kind="stable")  # what is left, best first
        return np.take_along_axis(found, order, axis=1)[:, :count]

    def _rank(
        self, histories: Histories, found: NDArray[np.int32], k: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the k best of found items [B, N], and their scores, as `top_k` does."""
        found = np.sort(found, axis=1)  # so that equal scores are in the order of their tokens
        scores = self.ranker.score(histories, found)
        if scores.isnan().any():
            raise NotANumberError("the model's scores are NaN: did its training diverge?")
        best, order = scores.sort(dim=1, descending=True, stable=True)
        order, best = order[:, :k].cpu(), best[:, :k].cpu()
        return np.take_along_axis(found, order.numpy(), axis=1), best.numpy()


def _together(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of histories that are not empty, those of similar length together."""
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    for start in range(0, len(order), _USERS):
        yield order[start : start + _USERS]
