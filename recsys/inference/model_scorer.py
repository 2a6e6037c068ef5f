"""The neural model as a `Scorer`, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD, Histories
from recsys.inference.best_scores import best_of_blocks
from recsys.inference.model_inputs import model_inputs
from recsys.inference.product_search import ProductSearch
from recsys.inference.scorer import (
    GROUP,
    CatalogueBlock,
    Search,
    batches_of_similar_length,
    users_per_batch,
)
from recsys.inference.state_cache import StateCache, joined
from recsys.model.heads import DotProductHead
from recsys.model.protocols import (
    CandidateRepresentation,
    Head,
    LastRepresentation,
    Model,
)


@dataclass(frozen=True, slots=True)
class _Step:
    """How much the model processes at once."""

    tokens: int
    """Rows times positions in the encoder, padding included."""
    elements: int
    """Elements in the head: rows times candidates, for target attention also times positions, per
    attention head and a few times over."""


# A CPU is fastest with what fits in its cache: for 346 histories of Beauty, 12,101 items and target
# attention, steps of 2^24 elements took 1.9 s, of 2^19 0.9 s. A GPU needs few, large steps.
_CPU_STEP, _GPU_STEP = _Step(1 << 12, 1 << 19), _Step(1 << 17, 1 << 26)

_JOINED = 4
"""Batches of histories whose scores of a large catalogue are computed together, unless the head
attends to the histories: four batches of 64 users took three quarters of the time of each alone."""

MOST_CANDIDATES = 1 / 3
"""Share of the catalogue above which all items are scored, and the candidates picked: items of the
catalogue are represented once for all users, candidates for each. All 19,384 items of a catalogue
as candidates took 2.1 times as long (target attention), or 11 times (dot product)."""


class ModelScorer:
    """Scores of a model, which reads only the latest items of a history.

    Histories of similar length go through the model together, candidates in chunks: it needs the
    memory of the result and a constant. A user's scores do not depend on the other users, except
    for rounding. Scores are float32 whatever the precision of training.

    Args:
        model: scores the catalogue.
        max_sequence_length: the number of latest items of a history that it reads.
        head: scores in place of the model's own head, from that head's representations.
        trained: the weights and the device of the model stay as they are while this scorer is used:
            the catalogue is represented once, not in each call.
        states: keeps encoded histories of this model between calls; none are kept if None.
    """

    def __init__(
        self,
        model: Model,
        max_sequence_length: int,
        head: Head | None = None,
        *,
        trained: bool = False,
        states: StateCache | None = None,
    ) -> None:
        self._model = model
        self._head = model.head if head is None else head
        self._max_sequence_length = max_sequence_length
        self._trained = trained
        self._states = states
        self._kept: CandidateRepresentation | None = None
        self._searched: ProductSearch | None = None

    @property
    def _device(self) -> torch.device:
        return self._model.items.weight.device

    @property
    def _step(self) -> _Step:
        return _CPU_STEP if self._device.type == "cpu" else _GPU_STEP

    @property
    def num_items(self) -> int:
        """The size of the catalogue, I."""
        return self._model.num_items

    @torch.inference_mode()
    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; on the device of the model.

        Only the candidates are scored, unless they are most of the catalogue. Candidates that are
        the same for all histories are represented once.

        Raises:
            ValueError: a history is empty; or the model reads times or features that the histories
                do not have.
        """
        with evaluating(self._model):
            if candidates is None:
                scores = self.score_shared(histories, self._catalogue())
                scores[:, PAD] = -torch.inf
                return scores
            tokens = torch.from_numpy(candidates.astype(np.int64)).to(self._device)
            many = candidates.shape[1] > MOST_CANDIDATES * self.num_items
            if many and self._trained:
                self._catalogue()  # it is kept, and the candidates are picked from it
            if len(candidates) and (candidates == candidates[0]).all():
                scores = self.score_shared(histories, self._represented(tokens[0]))
            elif many:
                return self.score(histories).gather(1, tokens)
            else:
                scores = self._scores_of_own(histories, tokens)
            return scores.masked_fill_(tokens == PAD, -torch.inf)

    @torch.inference_mode()
    def searches(self, histories: Histories) -> Iterator[tuple[NDArray[np.int64], Search]]:
        """See `SearchingScorer.searches`.

        Raises:
            ValueError: see `score`.
        """
        with evaluating(self._model):
            catalogue = self._catalogue()
            batches = self._batches(histories)
            most = _JOINED if self._head.kv_source is None else 1
            while together := list(islice(batches, most)):
                rows = np.concatenate([rows for rows, _ in together])
                last = joined([self._encode_last(batch) for _, batch in together])
                yield rows, partial(self._search, last, catalogue)

    def _search(
        self,
        last: LastRepresentation,
        catalogue: CandidateRepresentation,
        k: int,
        excluded: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """See `Search`."""
        products = self._products(catalogue)
        found = None if products is None else products.best(last[0], k, excluded)
        if found is not None:
            return found
        return best_of_blocks(self._blocks(last, catalogue), k, len(last[0]), excluded)

    def _products(self, catalogue: CandidateRepresentation) -> ProductSearch | None:
        """The search among kept items by dot products; None where scores are more than that."""
        plain = isinstance(self._head, DotProductHead) and self._device.type == "cpu"
        if self._searched is None and self._kept is not None and plain:
            self._searched = ProductSearch(catalogue[0])
        return self._searched

    @torch.inference_mode()
    def score_shared(self, histories: Histories, items: CandidateRepresentation) -> Tensor:
        """Return the scores [B, C] of C represented items, the same for all histories.

        Raises:
            ValueError: see `score`.
        """
        scores = torch.empty(len(histories), items[0].shape[-2], device=self._device)
        with evaluating(self._model):
            for rows, batch in self._batches(histories):
                indices = torch.from_numpy(rows).to(self._device)
                for columns, part in self._blocks(self._encode_last(batch), items):
                    scores[indices, columns] = part
        return scores

    @torch.inference_mode()
    def states(self, histories: Histories) -> Tensor:
        """Return the state [B, D] that the head joins with a candidate at the last item.

        Raises:
            ValueError: see `score`.
        """
        states = torch.empty(len(histories), 0, device=self._device)
        with evaluating(self._model):
            for rows, batch in self._batches(histories, len(histories)):
                state = self._encode_last(batch)[0]
                if not states.shape[1]:
                    states = state.new_empty(len(histories), state.shape[1])
                states[torch.from_numpy(rows).to(self._device)] = state
        return states

    def _read(self, histories: Histories) -> Histories:
        """Return what the model reads of histories.

        Raises:
            ValueError: one is empty, or the times of the requests are missing.
        """
        recent = histories.latest(self._max_sequence_length)
        if not recent.lengths.all():
            empty = recent.lengths.argmin()
            raise ValueError(f"history {empty} is empty: the model needs one item")
        if self._model.times == "request" and recent.request_times is None:
            raise ValueError("the model reads the time of the request: give `request_times`")
        return recent

    @torch.inference_mode()
    def vectors(self) -> Tensor:
        """Return what a state is joined with by a dot product, one row [I, D] for each item."""
        with evaluating(self._model):
            return self._catalogue()[0][1:].detach()

    def _catalogue(self) -> CandidateRepresentation:
        """The representation of PAD and all items."""
        if self._kept is not None:
            return self._kept
        catalogue = self._head.represent_candidates(self._model.items.table())
        if self._trained:
            self._kept = catalogue
        return catalogue

    def _blocks(
        self, last: LastRepresentation, items: CandidateRepresentation
    ) -> Iterator[CatalogueBlock]:
        """Yield the scores of histories with the same items, some items at a time."""
        count = items[0].shape[-2]
        step = max(1, self._step.elements // self._head.elements_per_candidate(last))
        if step > GROUP:
            step -= step % GROUP
        for start in range(0, count, step):
            columns = slice(start, min(start + step, count))
            chunk = tuple(part[..., columns, :] for part in items)
            yield CatalogueBlock(columns, self._head.score_last(last, chunk).float())

    def _scores_of_own(self, histories: Histories, tokens: Tensor) -> Tensor:
        """Scores [B, C] of histories, each with candidates of its own [B, C]."""
        scores = torch.empty(tokens.shape, device=self._device)
        for rows, batch in self._batches(histories):
            last = self._encode_last(batch)
            indices = torch.from_numpy(rows).to(self._device)
            gathered = len(rows) * self._model.items.embedding_dim
            per_candidate = max(self._head.elements_per_candidate(last), gathered)
            step = max(1, self._step.elements // per_candidate)
            for start in range(0, tokens.shape[1], step):
                columns = slice(start, start + step)
                chunk = self._represented(tokens[indices, columns])
                scores[indices, columns] = self._head.score_last(last, chunk).float()
        return scores

    def _batches(
        self, histories: Histories, most: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Histories]]:
        """Yield the rows of histories that go through the model together, and what it reads.

        At most so many rows; if None, as many as may have the scores of all items.
        """
        recent = self._read(histories)
        most = users_per_batch(self.num_items) if most is None else most
        for rows in batches_of_similar_length(recent.lengths, self._step.tokens, most):
            yield rows, recent.take(rows)

    def _represented(self, tokens: Tensor) -> CandidateRepresentation:
        """The representation of candidates [C] of all histories, or [B, C] of each."""
        if self._kept is None:
            return self._head.represent_candidates(self._model.items(tokens))
        rows = [part.index_select(-2, tokens.flatten()) for part in self._kept]
        if tokens.dim() == 1:
            return tuple(rows)
        own = [part.unflatten(-2, tokens.shape) for part in rows]
        return tuple(part.movedim(-3, 0) for part in own)

    def _encode_last(self, histories: Histories) -> LastRepresentation:
        if self._states is not None:
            return self._states.encode_last(self._model, histories)
        return self._model.encode_last(model_inputs(self._model, histories))


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Put the model into evaluation mode and full precision; then restore its mode."""
    training = model.training
    if training:  # else there is no need to visit all modules, twice
        model.eval()
    try:
        with torch.autocast(model.items.weight.device.type, enabled=False):
            yield
    finally:
        if training:
            model.train()
