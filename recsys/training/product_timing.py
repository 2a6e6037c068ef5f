"""How fast a training's products are in bf16 beside float32, measured on this machine."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from recsys.config import Experiment
from recsys.model.protocols import Head, Model
from recsys.timing import median_share
from recsys.training.losses import chunked_cross_entropy
from recsys.training.share_cache import known_share

_TOKENS, _CANDIDATES = 512, 1024
"""The positions and candidates that are timed, at most, unless one sequence is longer. With more,
everything takes longer in proportion."""


def bf16_share(experiment: Experiment, model: Model) -> float:
    """Return the time of a training's products in bf16 as a share of that in float32, on the CPU.

    What this machine has measured before for the same shapes is read from the cache. The model and
    the random state stay as they are.

    Args:
        experiment: the settings of the model.
        model: on the CPU; its head is timed.
    """
    dim = experiment.model.embedding_dim
    length = _power_of_two(experiment.model.max_sequence_length)
    candidates = min(_CANDIDATES, _power_of_two(model.num_items))
    head = experiment.model.model_dump(mode="json", include={"head"})
    shapes = {"embedding_dim": dim, "length": length, "candidates": candidates, **head}

    def measure() -> float:
        with torch.random.fork_rng(devices=[]):
            products = _Products(model.head, dim, length, candidates)
            return median_share(lambda: products(bf16=True), lambda: products(bf16=False))

    return known_share(shapes, measure)


class _Products:
    """The products of a training step, forward and backward, on random numbers.

    They are those of a feed-forward network, which stands for the encoder, and of the head with the
    softmax over its candidates.
    """

    def __init__(self, head: Head, dim: int, length: int, candidates: int) -> None:
        self._head = head
        rows = max(1, _TOKENS // length)
        self._states = torch.randn(rows, length, dim, requires_grad=True)
        self._table = torch.randn(candidates, dim).div_(dim).requires_grad_()
        self._up = torch.randn(4 * dim, dim).div_(dim).requires_grad_()
        self._down = torch.randn(dim, 4 * dim).div_(dim).requires_grad_()
        self._targets = torch.randint(1, candidates, (rows, length))

    def __call__(self, *, bf16: bool) -> None:
        head, states = self._head, self._states
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            encoded = F.linear(F.relu(F.linear(states, self._up)), self._down)
            loss = chunked_cross_entropy(
                head.logits,
                head.represent_history(encoded, states),
                head.represent_candidates(self._table),
                self._targets,
                None,
                chunk_rows=head.chunk_rows(states.shape[1], len(self._table), states.device),
            )
        torch.autograd.grad(loss, (states, self._up, self._down, self._table))


def _power_of_two(count: int) -> int:
    """Round up to a power of two, 2 at least.

    >>> [_power_of_two(count) for count in (1, 5, 8)]
    [2, 8, 8]
    """
    return 1 << max(1, (count - 1).bit_length())
