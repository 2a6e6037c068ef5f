"""The choice of a training's precision: as configured, or the faster one by measurement."""

from __future__ import annotations

import logging

import torch

from recsys.config import Experiment
from recsys.model.protocols import Model
from recsys.timing import WORTHWHILE
from recsys.training import processes, product_timing
from recsys.training.precision import Precision

logger = logging.getLogger(__name__)


def settle_precision(experiment: Experiment, model: Model) -> Precision:
    """Return the precision of the matrix products of a training, and log it with the reason.

    ``auto`` is bf16 on a GPU that supports it. On a CPU products of its shapes are timed in both,
    because no processor flag tells: with units for matrix products (AMX) bf16 is several times as
    fast; with AVX-512's bf16 instructions alone it is faster on some processors and slower on
    others. The first process measures, and all processes take its choice.

    Args:
        experiment: its ``training.precision`` is what is wanted.
        model: what is to be trained, on the CPU.
    """
    wanted = experiment.training.precision
    if wanted != "auto":
        return _logged(wanted, "as set")
    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return _logged("bf16", "the GPU supports it")
        return _logged("float32", "the GPU has no bf16")
    share = product_timing.bf16_share(experiment, model) if processes.is_first() else 1.0
    fast = processes.broadcast_from_rank0(share < WORTHWHILE)
    reason = f"products in bf16 took {share:.2f} times as long as in float32"
    return _logged("bf16" if fast else "float32", reason)


def _logged(precision: Precision, reason: str) -> Precision:
    logger.debug("precision: %s: %s", precision, reason)
    return precision
