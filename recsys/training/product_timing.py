"""How fast the matrix products of a training are on this machine, done in two ways."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import torch
from torch.nn import functional as F

from recsys.config import Experiment
from recsys.model.decayed_attention import sequences_together
from recsys.model.decayed_sums import NARROW, WIDE, DecayedSums
from recsys.model.protocols import Head, Model
from recsys.timing import median_share
from recsys.training.losses import chunked_cross_entropy
from recsys.training.share_cache import known_share

_TOKENS, _CANDIDATES = 512, 1024
"""The positions and candidates that are timed, at most, unless one sequence is longer. With more,
everything takes longer in proportion."""
_PRODUCT = 256, 128
"""The rows and columns of the first matrix of the single product that is timed before; the second
one has them the other way round."""
_EMULATED = 10.0
"""How many times as long as in float32 that product takes in bf16 at least where the processor has
no such instructions: 12 to 50 times with AVX2. A training step is not timed there, which took up to
2 s."""


def bf16_share(experiment: Experiment, model: Model) -> float:
    """Return the time of a training's products in bf16 as a share of that in float32, on the CPU.

    That of a single product, if it tells that the processor emulates bf16. What this machine has
    measured before for the same shapes is read from the cache. The model and the random state stay
    as they are.

    Args:
        experiment: the settings of the model.
        model: on the CPU; its head is timed.
    """
    if (share := _single_product_share()) >= _EMULATED:
        return share
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


def _single_product_share() -> float:
    """Return the time of one product of matrices in bf16 as a share of that in float32."""

    def measure() -> float:
        one, other = torch.ones(_PRODUCT), torch.ones(_PRODUCT[::-1])
        rounded = one.bfloat16(), other.bfloat16()
        return median_share(lambda: torch.mm(*rounded), lambda: one @ other, seconds=0.0)

    return known_share({"product": _PRODUCT}, measure)


def narrow_share(length: int) -> float:
    """Return the time of target attention's sums by narrow matrices as a share of that by wide.

    In bf16, on one thread of the CPU: whether another program disturbs two threads that wait for
    each other says nothing of the matrices. What this machine has measured before is read from the
    cache. For the sizes see `recsys.model.decayed_sums.Triangles`.

    Args:
        length: of the histories, at most.
    """
    length = _power_of_two(length)
    batch = sequences_together(length, _CANDIDATES, torch.device("cpu"))
    shapes = {
        "sums": [batch, length, _CANDIDATES],
        "triangles": [asdict(NARROW), asdict(WIDE)],
    }

    def measure() -> float:
        weighted = torch.ones(_CANDIDATES, batch * length, dtype=torch.bfloat16)
        narrow, wide = (
            size.sums(torch.tensor(0.1), batch, length, weighted.dtype, mean=True)
            for size in (NARROW, WIDE)
        )

        def sum_by(way: DecayedSums) -> None:
            way.past(weighted)

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return median_share(partial(sum_by, narrow), partial(sum_by, wide))
        finally:
            torch.set_num_threads(threads)

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
