"""What a training runs on: the device, its free memory, and the precision of its products."""

import gc
import logging
import os
import statistics
import time
from functools import cache
from typing import Literal

import torch
from torch import distributed

from recsys.config.experiment import Experiment
from recsys.errors import InputError

logger = logging.getLogger(__name__)

NO_CUBLAS_CONTEXT = "Attempting to run cuBLAS, but there was no current CUDA context"
"""How torch's warning begins at the first matrix product of autograd's thread on a GPU, which makes
a context there: nothing is wrong, and users cannot avoid it."""

Precision = Literal["bf16", "float32"]
_WORTHWHILE = 0.9
"""The share of float32's time below which bf16 is taken: less is not worth a coarser rounding."""


def processes() -> int:
    """Return the number of processes that torchrun started; without it there is one."""
    started = distributed.is_available() and distributed.is_torchelastic_launched()
    return int(os.environ["WORLD_SIZE"]) if started else 1


def process() -> int:
    """Return the number of this process, from 0; the first one alone tests, writes and logs."""
    return int(os.environ["RANK"]) if processes() > 1 else 0


def take_gpu() -> None:
    """Give each of several processes a GPU of its own, or raise InputError: there are fewer."""
    if processes() == 1 or not torch.cuda.is_available():
        return
    started, count = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if started > count:
        raise InputError(
            f"torchrun started {started} processes on this machine, which has {count} GPUs: start "
            "as many, or train on the CPU with CUDA_VISIBLE_DEVICES="
        )
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def training_device() -> str:
    """Return what trainings run on: cuda, or cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def gpus() -> list[int]:
    """Return the GPU that this process computes on, if any."""
    return [torch.cuda.current_device()] if torch.cuda.is_available() else []


def gpu_memory() -> int | None:
    """Return the bytes free on the GPU, those that torch only reserves too; None without one."""
    if not torch.cuda.is_available():
        return None
    gc.collect()  # earlier trainings and their trainers refer to each other
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def settle_precision(experiment: Experiment) -> Precision:
    """Return the precision of the matrix products of a training, and log what ``auto`` settles on.

    ``auto`` is bf16 on a GPU that supports it. On a CPU the product of states and candidates is
    timed in both, because no processor flag tells; several processes might not agree.
    """
    if experiment.training.precision != "auto":
        return experiment.training.precision
    if torch.cuda.is_available():
        is_faster = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        is_faster = processes() == 1 and bf16_share(experiment.model.embedding_dim) < _WORTHWHILE
    settled: Precision = "bf16" if is_faster else "float32"
    logger.debug("precision: %s", settled)
    return settled


@cache
def bf16_share(embedding_dim: int) -> float:
    """Return the median time of a product of states and candidates in bf16 as a share of float32's.

    Both are timed in turn: what else the machine does slows both. The first products, which may
    compile kernels, do not count; two more are enough where bf16 is emulated.
    """
    times: dict[torch.dtype, list[float]] = {torch.bfloat16: [], torch.float32: []}
    shapes = (512, embedding_dim), (embedding_dim, 4096), (512, 4096)
    sides = [[torch.ones(shape, dtype=dtype) for shape in shapes] for dtype in times]
    for repeat in range(20):
        for (states, candidates, out), taken in zip(sides, times.values(), strict=True):
            started = time.perf_counter()
            torch.mm(states, candidates, out=out)  # new memory would cost more than the product
            taken.append(time.perf_counter() - started)
        bf16, float32 = (taken[1:] for taken in times.values())
        if repeat == 2 and min(bf16) > 3 * max(float32):
            break
    return statistics.median(bf16) / statistics.median(float32)
