"""The floating-point precision of the matrix products of a training: as set, or the faster one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch

from recsys.config import Experiment
from recsys.timing import WORTHWHILE, median_share
from recsys.training import processes

logger = logging.getLogger(__name__)

Precision = Literal["bf16", "float32"]

_POSITIONS, _CANDIDATES = 512, 4096
"""The rows of the two matrices of the product that is timed."""


def settle_precision(experiment: Experiment) -> Precision:
    """Return the precision of the matrix products of a training, and log it with the reason.

    ``auto`` is bf16 on a GPU that supports it. On a CPU the product of states and candidates is
    timed in both, because no processor flag tells: with units for matrix products (AMX) bf16 is
    several times as fast; with AVX-512's bf16 instructions alone it is faster on some processors
    and slower on others. The first process measures, and all processes take its choice.
    """
    wanted = experiment.training.precision
    if wanted != "auto":
        return _logged(wanted, "as set")
    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return _logged("bf16", "the GPU supports it")
        return _logged("float32", "the GPU has no bf16")
    share = bf16_share(experiment.model.embedding_dim) if processes.is_first() else 1.0
    fast = processes.broadcast_from_rank0(share < WORTHWHILE)
    reason = f"a product in bf16 took {share:.2f} times as long as in float32"
    return _logged("bf16" if fast else "float32", reason)


@cache
def bf16_share(embedding_dim: int) -> float:
    """Return the time of a product of states and candidates in bf16 as a share of float32's."""

    def product(dtype: torch.dtype) -> Callable[[], object]:
        states = torch.ones(_POSITIONS, embedding_dim, dtype=dtype)
        candidates = torch.ones(embedding_dim, _CANDIDATES, dtype=dtype)
        out = torch.empty(_POSITIONS, _CANDIDATES, dtype=dtype)  # new memory costs more than these
        return lambda: torch.mm(states, candidates, out=out)

    return median_share(product(torch.bfloat16), product(torch.float32))


def with_precision(experiment: Experiment, precision: Precision | None) -> Experiment:
    """Return the experiment with a settled precision; unchanged if None."""
    if precision is None:
        return experiment
    training = experiment.training.model_copy(update={"precision": precision})
    return experiment.model_copy(update={"training": training})


def lightning_name(precision: Precision) -> Literal["bf16-mixed", "32-true"]:
    """Return what Lightning calls it."""
    return "bf16-mixed" if precision == "bf16" else "32-true"


def product_dtype(precision: Precision | None) -> torch.dtype:
    """Return the dtype of the matrix products; float32 unless it is bf16."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _logged(precision: Precision, reason: str) -> Precision:
    logger.debug("precision: %s: %s", precision, reason)
    return precision
