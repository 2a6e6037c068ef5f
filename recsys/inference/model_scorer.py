"""The neural model as a `Scorer` and as a generator of lists; the histories that it encoded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.data.database import memory_limit
from recsys.data.histories import PAD, Histories, Int32s, Int64s
from recsys.errors import InputError
from recsys.inference.ranking import excluded_items
from recsys.inference.scorer import (
    ELEMENTS_PER_BATCH,
    MOST_CANDIDATES,
    Seen,
    TopItems,
    batches_of_similar_length,
    users_per_batch,
)
from recsys.machine import keep_freed_memory
from recsys.model.heads import CandidateRepresentation, Head, LastRepresentation
from recsys.model.models import Model, ModelInputs
from recsys.model.sequence_to_sequence import Beam, Greedy, SequenceToSequence, Strategy

# How much the model processes at once: tokens in the encoder, padding included; and elements in the
# head, rows times candidates, for target attention also times positions. A CPU is fastest with what
# fits in its cache: for 346 histories of Beauty, 12,101 items and target attention, steps of 2^24
# elements took 1.9 s, of 2^19 0.9 s. A GPU needs few, large steps.
_CPU_STEP, _GPU_STEP = (1 << 12, 1 << 19), (1 << 17, 1 << 26)
_MOST_PAIRS = min(1 << 31, memory_limit() // 8) // 4
"""The most numbers in matrices of pairs of items: 2 GiB, which one of 23,000 items takes."""
_MATRICES = {"sum": 1, "average": 2}
"""Those of an attention head: with averages, the weights beside."""


def can_sum_pairs(poolings: Sequence[str], num_items: int, device: str) -> bool:
    """Return whether matrices of pairs fit, of attention heads so pooled; unmeasured on a GPU."""
    size = sum(_MATRICES[pooling] for pooling in poolings) * num_items * (num_items + 1)
    return device == "cpu" and 0 < size <= _MOST_PAIRS


class ModelScorer:
    """Scores of a model, float32 whatever the precision of training, in bounded memory.

    A user's scores do not depend on the other users, except for rounding. A ``head`` scores in
    place of the model's own, from that head's representations. The catalogue is represented once:
    the weights must stay as they are. ``states`` keeps encoded histories.
    """

    def __init__(
        self,
        model: Model,
        max_sequence_length: int,
        head: Head | None = None,
        states: StateCache | None = None,
    ) -> None:
        keep_freed_memory()
        self._model = model
        self._head = model.head if head is None else head
        self._max_sequence_length = max_sequence_length
        self._states = states
        self._kept: CandidateRepresentation | None = None
        self._read = 0  # purchases of the histories that all items were scored for

    @property
    def _device(self) -> torch.device:
        return self._model.items.weight.device

    @property
    def _step(self) -> tuple[int, int]:
        return _CPU_STEP if self._device.type == "cpu" else _GPU_STEP

    @property
    def num_items(self) -> int:
        return self._model.num_items

    @torch.inference_mode()
    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        """See `Scorer.score`; on the device of the model. Equal candidates are represented once.

        Raises:
            ValueError: a history is empty, or lacks times or features that the model reads.
        """
        with evaluating(self._model):
            if candidates is None:
                scores = self._scores_of_all(histories)
                scores[:, PAD] = -torch.inf
                return scores
            tokens = torch.from_numpy(candidates.astype(np.int64)).to(self._device)
            many = candidates.shape[1] > MOST_CANDIDATES * self.num_items
            if many:
                self._catalogue()  # it is kept, and the candidates are picked from it
            if len(candidates) and (candidates == candidates[0]).all():
                scores = self._scores_of_shared(histories, self._represented(tokens[0]))
            elif many:
                return self.score(histories).gather(1, tokens)
            else:
                scores = self._scores(
                    histories,
                    tokens.shape[1],
                    lambda rows, columns: self._represented(tokens[rows, columns]),
                    gathered=self._model.items.embedding_dim,
                )
            return scores.masked_fill_(tokens == PAD, -torch.inf)

    @torch.inference_mode()
    def states(self, histories: Histories) -> Tensor:
        """Return the state [B, D] that the head joins with a candidate at the last item."""
        with evaluating(self._model):
            batches = list(self._batches(histories, len(histories)))
            states = torch.cat([self._encode_last(batch)[0] for _, batch in batches])
        order = np.concatenate([rows for rows, _ in batches]).argsort()
        return states[torch.from_numpy(order).to(self._device)]

    @torch.inference_mode()
    def vectors(self) -> Tensor:
        """Return what a state is joined with by a dot product, one row [I, D] for each item."""
        with evaluating(self._model):
            return self._catalogue()[0][1:].detach()

    def _catalogue(self) -> CandidateRepresentation:
        if self._kept is None:
            self._kept = self._head.represent_candidates(self._model.items.table())
        return self._kept

    @cached_property
    def _by_dimension(self) -> CandidateRepresentation:
        """The catalogue in the order in which a product with one history reads the memory.

        It takes down to a fifth of the time; picking candidates from it would take longer.
        """
        items = self._catalogue()
        return items._replace(embeddings=items.embeddings.mT.contiguous().mT)

    def _scores_of_all(self, histories: Histories) -> Tensor:
        lengths = histories.lengths.clip(max=self._max_sequence_length)
        # Pairs are worth making once it has cost as much without; at once in a server, which keeps
        # states: no request is to be slow.
        self._read += self.num_items if self._states is not None else int(lengths.sum())
        known = self._head.poolings, self.num_items, self._device.type
        # Features of purchases are in their keys: each purchase has its own.
        if self._read < self.num_items or histories.features or not can_sum_pairs(*known):
            return self._scores_of_shared(histories, self._by_dimension)
        scores = torch.empty(len(histories), self.num_items + 1)
        step = max(1, self._step[1] // self.num_items)
        for rows, batch in self._batches(histories):
            last, indices = self._encode_last(batch), torch.from_numpy(rows)
            for start in range(0, len(rows), step):
                some = slice(start, start + step)
                sums = self._attended(batch[some])
                sums.addmm_(last.state[some], self._by_dimension.embeddings.mT)
                scores.index_copy_(0, indices[some], sums)
        return scores

    @cached_property
    def _pairs(self) -> list[Tensor]:
        """What a purchase of each item adds to each item, before decay, [1, I, I + 1] of each head.

        Its key and its value are those of its item. With "average" [2, I, I + 1]: the second matrix
        has the weights, of which a history's sum is the divisor.
        """
        shape = self.num_items, self.num_items + 1
        pairs = [torch.empty(_MATRICES[pooling], *shape) for pooling in self._head.poolings]
        times = np.zeros(self.num_items, np.int64)
        items = np.arange(1, self.num_items + 1, dtype=np.int32), np.arange(self.num_items + 1)
        for rows, batch in self._batches(Histories(*items, times, times)):
            last = self._model.encode_last(model_inputs(self._model, batch))
            history = last.keys.transpose(0, 2), last.values.transpose(0, 2), last.lengths[:1]
            heads = self._head.terms(*history, self._catalogue())
            block = slice(rows[0], rows[-1] + 1)
            for tables, (_, weights, value_scores, _) in zip(pairs, heads, strict=True):
                torch.mul(weights[0], value_scores[0], out=tables[0][block])
                for table in tables[1:]:
                    table[block] = weights[0]
        return pairs

    def _attended(self, histories: Histories) -> Tensor:
        """What all purchases add to the scores of all items, [B, I + 1]: sums of `_pairs`."""
        users, ages, offsets, attended = histories.users, histories.ages, histories.offsets, []
        items = torch.from_numpy(histories.items - np.int64(1))
        options: dict[str, Any] = {"mode": "sum", "include_last_offset": True}
        options["offsets"] = torch.from_numpy(offsets)
        for rate, tables in zip(self._head.decays.tolist(), self._pairs, strict=True):
            decay = np.exp(-rate * ages)
            shares = (decay / np.add.reduceat(decay, offsets[:-1])[users]).astype(np.float32)
            options["per_sample_weights"] = torch.from_numpy(shares)
            sums = [F.embedding_bag(items, table, **options) for table in tables]
            attended.append(sums[0].div_(sums[1]) if len(sums) > 1 else sums[0])
        return reduce(Tensor.add_, attended)

    def _scores_of_shared(self, histories: Histories, items: CandidateRepresentation) -> Tensor:
        width = items.embeddings.shape[-2]

        def part(_: Tensor, columns: slice) -> CandidateRepresentation:
            return CandidateRepresentation(*(side[..., columns, :] for side in items))

        return self._scores(histories, width, part)

    def _scores(
        self,
        histories: Histories,
        width: int,
        represented: Callable[[Tensor, slice], CandidateRepresentation],
        gathered: int = 0,
    ) -> Tensor:
        scores = torch.empty(len(histories), width, device=self._device)
        for rows, batch in self._batches(histories):
            last, indices = self._encode_last(batch), torch.from_numpy(rows).to(self._device)
            for columns in self._columns(last, width, gathered * len(rows)):
                chunk = represented(indices, columns)
                scores[indices, columns] = self._head.score_last(last, chunk).float()
        return scores

    def _columns(self, last: LastRepresentation, width: int, least: int) -> Iterator[slice]:
        """Divide C candidates into chunks of a step; each takes so many elements at least."""
        elements = max(len(last.state) * (last.keys.shape[2] if self._head.attends else 1), least)
        step = max(1, self._step[1] // elements)
        step -= step % 64 if step > 64 and not least else 0
        for start in range(0, width, step):
            yield slice(start, min(start + step, width))

    def _batches(
        self, histories: Histories, most: int | None = None
    ) -> Iterator[tuple[Int64s, Histories]]:
        """Yield the rows of histories that go through the model together, and what it reads.

        At most so many rows; if None, as many as may have the scores of all items.
        """
        recent = histories.latest(self._max_sequence_length)
        if not recent.lengths.all():
            empty = recent.lengths.argmin()
            raise ValueError(f"history {empty} is empty: the model needs one item")
        if self._model.times == "request" and recent.request_times is None:
            raise ValueError("the model reads the time of the request: give `request_times`")
        most = users_per_batch(self.num_items) if most is None else most
        for rows in batches_of_similar_length(recent.lengths, self._step[0], most):
            yield rows, recent.take(rows)

    def _represented(self, tokens: Tensor) -> CandidateRepresentation:
        """The representation of candidates [C] of all histories, or [B, C] of each."""
        if self._kept is None:
            return self._head.represent_candidates(self._model.items(tokens))
        rows = [side.index_select(-2, tokens.flatten()) for side in self._kept]
        if tokens.dim() == 1:
            return CandidateRepresentation(*rows)
        own = [side.unflatten(-2, tokens.shape) for side in rows]
        return CandidateRepresentation(*(side.movedim(-3, 0) for side in own))

    def _encode_last(self, histories: Histories) -> LastRepresentation:
        if self._states is not None:
            return self._states.encode_last(self._model, histories)
        return self._model.encode_last(model_inputs(self._model, histories))


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Put the model into evaluation mode and full precision during the block."""
    training = model.training
    if training:  # else there is no need to visit all modules, twice
        model.eval()
    try:
        with torch.autocast(model.items.weight.device.type, enabled=False):
            yield
    finally:
        if training:
            model.train()


def model_inputs(model: Model, histories: Histories) -> ModelInputs:
    """The inputs of a model for a batch of histories, on its device."""
    device = model.items.weight.device
    items = torch.from_numpy(histories.padded()).to(device)
    lengths = torch.from_numpy(histories.lengths).to(device)
    times = histories.padded_times()
    return ModelInputs(
        items,
        lengths,
        None if times is None else torch.from_numpy(times).to(device),
        tuple(torch.from_numpy(values).to(device) for values in histories.padded_features()),
    )


class StateCache:
    """What one model made of the latest histories, in bounded memory, keys included.

    A history is known by everything that the model reads of it. The least recently used one is
    dropped first. The weights of the model must stay as they are, and one thread may use it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[bytes, ...], LastRepresentation] = OrderedDict()
        self.bytes = 0
        self.hits = self.misses = 0
        """Histories that were known, and that were encoded; whoever reports them may set them."""

    def encode_last(self, model: Model, histories: Histories) -> LastRepresentation:
        """Return `Model.encode_last` of B histories, none empty; unknown ones are encoded."""
        keys = [_key(model, histories[row : row + 1]) for row in range(len(histories))]
        rows = {key: row for row, key in enumerate(keys) if key not in self._kept}
        self.hits += len(keys) - len(rows)
        self.misses += len(rows)
        states = {key: self._kept[key] for key in keys if key not in rows}
        for key in states:
            self._kept.move_to_end(key)
        if rows:
            new = np.fromiter(rows.values(), np.int64, len(rows))
            encoded = model.encode_last(model_inputs(model, histories.take(new)))
            for row, key in enumerate(rows):
                states[key] = LastRepresentation(*(field[row : row + 1] for field in encoded))
                self._keep(key, states[key])
            if len(rows) == len(keys):
                return encoded
        return joined([states[key] for key in keys])

    def _keep(self, key: tuple[bytes, ...], state: LastRepresentation) -> None:
        size = _size(key, state)
        if size > self._most_bytes:
            return
        while self.bytes + size > self._most_bytes:
            self.bytes -= _size(*self._kept.popitem(last=False))
        # Clones, not the memory of the batch.
        self._kept[key] = LastRepresentation(*(field.clone() for field in state))
        self.bytes += size


def _key(model: Model, history: Histories) -> tuple[bytes, ...]:
    times = history.padded_times() if model.times != "none" else None
    read = [history.items, times, *history.padded_features()]
    return tuple(array.tobytes() for array in read if array is not None)


def _size(key: tuple[bytes, ...], state: LastRepresentation) -> int:
    return sum(map(len, key)) + sum(field.nbytes for field in state)


def joined(states: Sequence[LastRepresentation]) -> LastRepresentation:
    """Join the representations of histories; what has positions is right-padded to the longest."""
    if len(states) == 1:
        return states[0]
    width = max(state.keys.shape[-2] for state in states)
    padded = (
        [
            F.pad(field, (0, 0, 0, width - field.shape[-2])) if field.dim() > 2 else field
            for field in state
        ]
        for state in states
    )
    return LastRepresentation(*map(torch.cat, zip(*padded, strict=True)))


# --- Generated lists ------------------------------------------------------------------------------

_GENERATING_STEP = 1 << 13  # tokens of histories that are encoded at once, padding included


@torch.inference_mode()
def generate_lists(
    model: SequenceToSequence,
    max_sequence_length: int,
    histories: Histories,
    length: int,
    seen: Seen,
    *,
    strategy: Strategy | None = None,
    candidates: Int32s | None = None,
    repeats: bool = False,
) -> TopItems:
    """Generate n next purchases of each user, in bounded memory: the most probable of the lists.

    With "filter", no item of a user's history is generated; with candidates, no other token;
    without ``repeats``, none twice. The strategy is `Greedy` if None. An InputError if the model
    cannot generate that many.

    Returns:
        Item tokens [B, n] in the order of purchase, PAD where no item was left; and the
        log-probabilities of the lists [B].
    """
    if not 1 <= length <= model.max_generated:
        raise InputError(
            f"n={length}: this model generates 1 to {model.max_generated} purchases "
            "(model.max_generated of its config)"
        )
    recent = histories.latest(max_sequence_length)
    if not recent.lengths.all():
        raise ValueError(f"history {recent.lengths.argmin()} is empty: one item is needed")
    strategy = strategy or Greedy()
    lists = np.empty((len(histories), length), dtype=np.int32)
    scores = np.empty(len(histories), dtype=np.float32)
    width = strategy.width if isinstance(strategy, Beam) else 1
    most_rows = max(1, ELEMENTS_PER_BATCH // ((model.num_items + 1) * width))
    device = model.items.weight.device
    among = torch.full((model.num_items + 1,), candidates is None, device=device)
    if candidates is not None:
        among[torch.from_numpy(candidates.astype(np.int64))] = True
    with evaluating(model):
        for rows in batches_of_similar_length(recent.lengths, _GENERATING_STEP, most_rows):
            allowed = among.repeat(len(rows), 1)
            allowed[excluded_items(histories.take(rows), seen, device)] = False
            read = recent.take(rows)
            arrays = read.padded(), read.lengths
            encoded = model.encode(*(torch.from_numpy(a).to(device) for a in arrays))
            tokens, totals = strategy(model, encoded, allowed, length, repeats=repeats)
            lists[rows] = tokens[:, 0].cpu().numpy()
            scores[rows] = totals[:, 0].cpu().numpy()
    return lists, scores
