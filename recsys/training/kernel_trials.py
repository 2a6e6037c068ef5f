"""What kernels are compared with torch on: random inputs of the shapes of a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.config import CrossEntropy, Experiment
from recsys.model.decayed_attention import Attend
from recsys.model.directions import directions
from recsys.model.protocols import Model
from recsys.training.losses import SoftmaxGradient

Function = Callable[[], Sequence[Tensor]]
"""A computation to compare, and what it returns."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the logits that a training makes at once."""

    rows: int
    """Sequences; positions are sequences of length 1 for a head without attention."""
    length: int
    """Positions of a sequence."""
    candidates: int
    """The columns."""
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, experiment: Experiment, model: Model, dtype: torch.dtype) -> Shape:
        """Return the shape of a full chunk of a full batch of the longest sequences."""
        head, training, device = model.head, experiment.training, model.items.weight.device
        length = 1 if head.kv_source is None else experiment.model.max_sequence_length
        items = model.items  # those with features may have no rows of their own
        candidates = len(items.weight) if items.features is None else len(items.features.rows)
        if not isinstance(training.loss, CrossEntropy):
            candidates = training.loss.num_negatives
        rows = head.chunk_rows(length, candidates, device)
        rows = min(rows, max(1, training.batch_tokens // length))
        return cls(rows, length, candidates, device, dtype)

    def normal(self, *sizes: int) -> Tensor:
        """Return random numbers, always the same ones, that leave the random state as it is."""
        generator = torch.Generator(self.device).manual_seed(0)
        return torch.randn(*sizes, generator=generator, device=self.device, dtype=self.dtype)


def attention_trial(shape: Shape, attend: Attend, dim: int) -> Function:
    """What candidates attend to, in one attention head of width d, and the gradients."""
    keys = directions(shape.normal(shape.rows, shape.length, dim)).to(shape.dtype)
    queries = directions(shape.normal(shape.candidates, dim)).to(shape.dtype)
    # Values other than the keys, and logits up to 3, as at the start of a training.
    sides = [side.requires_grad_() for side in (keys, keys.flip(-1), 3 * queries, queries.flip(-1))]
    upstream = shape.normal(shape.candidates, shape.rows * shape.length)
    decay = torch.tensor(0.05, device=shape.device)

    def run() -> Sequence[Tensor]:
        keys, values, queries, value_queries = sides
        scores = torch.zeros_like(upstream)
        attended = attend(scores, keys, values, queries, value_queries, decay)
        return [attended, *torch.autograd.grad(attended, sides, upstream)]

    return run


def softmax_trial(
    shape: Shape, gradient: SoftmaxGradient, label_smoothing: float, *, by_candidate: bool
) -> Function:
    """The loss of a chunk and its gradient.

    The logits are overwritten in each call: after the first they are between -1 and 1.

    Args:
        shape: the shape of the logits.
        gradient: computes both.
        label_smoothing: see `cross_entropy`.
        by_candidate: whether positions are contiguous in memory, not candidates.
    """
    count = shape.rows * shape.length
    if by_candidate:
        logits = shape.normal(shape.candidates, count).T
    else:
        logits = shape.normal(count, shape.candidates)
    scores = logits.unflatten(0, (shape.rows, shape.length))
    tokens = torch.arange(count, device=shape.device) % shape.candidates  # some have no target
    targets = tokens.view(shape.rows, shape.length)
    return lambda: gradient(scores, targets, None, label_smoothing, shape.candidates)
