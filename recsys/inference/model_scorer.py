"""The neural model as a `Scorer`: histories in, scores out, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD, Histories
from recsys.data.sequence_batch import FeatureTensors
from recsys.inference.scorer import users_per_batch
from recsys.model.build import Model
from recsys.model.heads import CandidateRepresentation, DotProductHead, HistoryRepresentation
from recsys.model.model_inputs import Inputs
from recsys.model.next_item import NextItemModel


@dataclass(frozen=True, slots=True)
class _Step:
    """How much goes through the model at once."""

    tokens: int
    """Rows times positions through the encoder, padding included."""
    elements: int
    """Numbers that the head holds: rows times candidates, for target attention times positions
    too, per attention head and a few times over."""


# On a CPU what stays in its cache is fastest: for 346 histories of Beauty, 12,101 items and target
# attention, steps of 2^24 elements took 1.9 s, of 2^19 0.9 s. A GPU wants few, large steps.
_CPU_STEP, _GPU_STEP = _Step(1 << 12, 1 << 19), _Step(1 << 17, 1 << 26)


class ModelScorer:
    """Scores from a model: only the newest items of a history are read.

    Histories of like length go through the model together, candidates in chunks: memory is that of
    the result and a constant. A user's scores do not depend on who else is asked for, but for
    rounding. Scores are float32 whatever the precision of training.

    Args:
        model: scores the catalogue.
        max_sequence_length: the newest items of a history that it reads.
        head: scores in place of the model's own.
    """

    def __init__(
        self, model: Model, max_sequence_length: int, head: DotProductHead | None = None
    ) -> None:
        self._model = model
        self._head = model.head if head is None else head
        self._max_sequence_length = max_sequence_length

    @property
    def _step(self) -> _Step:
        return _CPU_STEP if self._model.items.weight.device.type == "cpu" else _GPU_STEP

    @property
    def num_items(self) -> int:
        """Items in the catalogue."""
        return self._model.num_items

    @torch.inference_mode()
    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; on the device of the model. Only what is asked for is scored.

        Raises:
            ValueError: a history is empty: the model has no opinion then; or the model reads times
                or features that the histories do not have.
        """
        recent = histories.newest(self._max_sequence_length)
        lengths = recent.lengths
        if not lengths.all():
            raise ValueError(f"history {lengths.argmin()} is empty: the model needs one item")
        told = isinstance(self._model, NextItemModel) and self._model.times == "request"
        if told and recent.request_times is None:
            raise ValueError("the model reads when the next item is asked for: give `asked`")
        device = self._model.items.weight.device
        width = self.num_items + 1 if candidates is None else candidates.shape[1]
        scores = torch.empty(len(histories), width, device=device)
        most_rows = users_per_batch(self.num_items)
        with evaluating(self._model):
            whole = candidates is None
            catalogue = self._head.represent_candidates(self._model.items.table()) if whole else ()
            for rows in like_lengths(lengths, self._step.tokens, most_rows):
                some, places = recent.take(rows), torch.from_numpy(rows).to(device)
                if candidates is None:
                    for columns, part in self._catalogue_scores(some, catalogue):
                        scores[places, columns] = part.to(scores.dtype)
                    scores[places, PAD] = -torch.inf
                else:
                    scores[places] = self._candidate_scores(some, candidates[rows])
        return scores

    def _catalogue_scores(
        self, histories: Histories, catalogue: CandidateRepresentation
    ) -> Iterator[tuple[slice, Tensor]]:
        """Scores [B, C] of a few histories, some items at a time: which, and their scores."""
        history, lengths = self._read(histories)
        step = max(1, self._step.elements // self._head.numbers_held(*history[0].shape[:2]))
        for start in range(0, self.num_items + 1, step):
            columns = slice(start, start + step)
            chunk = tuple(part[..., columns, :] for part in catalogue)
            yield columns, self._head.newest(history, chunk, lengths)

    def _read(self, histories: Histories) -> tuple[HistoryRepresentation, Tensor]:
        """What decides the scores of a few histories, and its lengths."""
        inputs = model_inputs(self._model, histories)
        return self._head.recent(self._model.newest(inputs), inputs.lengths)

    def _candidate_scores(self, histories: Histories, candidates: NDArray[np.int32]) -> Tensor:
        """Scores [B, C] of a few histories, each of its own candidates [B, C]."""
        history, lengths = self._read(histories)
        tokens = torch.from_numpy(candidates.astype(np.int64)).to(lengths.device)
        gathered = len(tokens) * self._model.items.embedding_dim
        held = max(self._head.numbers_held(*history[0].shape[:2]), gathered)
        step = max(1, self._step.elements // held)
        scores = torch.empty(tokens.shape, device=tokens.device)
        for start in range(0, tokens.shape[1], step):
            chunk = self._head.represent_candidates(
                self._model.items(tokens[:, start : start + step])
            )
            scores[:, start : start + step] = self._head.newest(history, chunk, lengths)
        return scores.masked_fill_(tokens == PAD, -torch.inf)


def read_histories(model: Model, histories: Histories) -> tuple[HistoryRepresentation, Tensor]:
    """What the head needs of a few histories, with all that the model reads of them; lengths [B].

    Raises:
        ValueError: the model reads times or features that the histories do not have.
    """
    inputs = model_inputs(model, histories)
    return model(inputs), inputs.lengths


def model_inputs(model: Model, histories: Histories) -> Inputs:
    """What a model reads of a few histories, on its device."""
    device = model.items.weight.device
    items = torch.from_numpy(histories.padded()).to(device)
    lengths = torch.from_numpy(histories.lengths).to(device)
    times, features = histories.padded_times(), FeatureTensors.from_histories(histories)
    moments = None if times is None else torch.from_numpy(times).to(device)
    known = None if features is None else features.to(device)
    return Inputs(items, lengths, moments, known)


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """The model in evaluation mode and full precision, even in the midst of training."""
    training = model.training
    model.eval()
    try:
        with torch.autocast(model.items.weight.device.type, enabled=False):
            yield
    finally:
        model.train(training)


def like_lengths(lengths: NDArray[np.int64], tokens: int, rows: int) -> Iterator[NDArray[np.int64]]:
    """The histories, shortest first, in runs of at most so many tokens, padding included, and rows.

    A history that is longer by itself makes a run of its own.

    >>> [run.tolist() for run in like_lengths(np.array([5, 1, 3, 1]), tokens=4, rows=10)]
    [[1, 3], [2], [0]]
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        # Lengths only grow, so the last history of a run sets its width.
        widths = lengths[order[start : start + rows]]
        fit = np.searchsorted(widths * np.arange(1, len(widths) + 1), tokens, side="right")
        stop = start + max(1, int(fit))
        yield order[start:stop]
        start = stop
