"""The choice of a training's precision: as configured, or the faster one by measurement."""

from __future__ import annotations

import logging

import torch

from recsys.config import Experiment
from recsys.data.sharded_batches import Batches
from recsys.training import processes, step_timing
from recsys.training.module import TrainingModule
from recsys.training.precision import Precision

logger = logging.getLogger(__name__)

WORTHWHILE = 0.9
"""The share of float32's time below which bf16 is taken: less is worth its coarser rounding, and
what a busy machine adds to one of the two does not decide."""


def settle_precision(experiment: Experiment, module: TrainingModule, batches: Batches) -> Precision:
    """Return the precision of the matrix products of a training, and log it with the reason.

    ``auto`` is bf16 on a GPU that supports it. On a CPU a few steps are timed in both precisions,
    because no processor flag tells: with units for matrix products (AMX) bf16 is several times as
    fast; with AVX-512's bf16 instructions alone it is faster on some processors and slower on
    others. The first process measures, and all processes take its choice.

    Args:
        experiment: its ``training.precision`` is what is wanted.
        module: what is to be trained, on the CPU.
        batches: what it is to be trained on.
    """
    wanted = experiment.training.precision
    if wanted != "auto":
        return _logged(wanted, "as set")
    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return _logged("bf16", "the GPU supports it")
        return _logged("float32", "the GPU has no bf16")
    share = step_timing.bf16_share(experiment, module, batches) if processes.is_first() else 1.0
    fast = processes.broadcast_from_rank0(share < WORTHWHILE)
    found = f"a step in bf16 takes {share:.2f} of float32's time"
    return _logged("bf16" if fast else "float32", found)


def _logged(precision: Precision, reason: str) -> Precision:
    logger.info("precision: %s: %s", precision, reason)
    return precision
