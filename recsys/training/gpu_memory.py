"""The memory of the GPU that trains: what does not fit is refused in one line."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recsys.config import TrainingConfig
from recsys.errors import InputError


def gpu_memory() -> int | None:
    """Return the bytes of memory that are free on the GPU; None if there is none.

    What torch has reserved of it and does not use is free too.
    """
    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def release_gpu_memory() -> None:
    """Release what earlier trainings hold on the GPU.

    A training, its callbacks and Lightning's trainer refer to each other: their tensors are kept
    until the garbage collector comes, which does not know that memory is short on the GPU.
    """
    if torch.cuda.is_available():
        gc.collect()


@contextmanager
def gpu_memory_suffices(config: TrainingConfig) -> Iterator[None]:
    """Say in one line that the block needs more memory than is free on the GPU.

    Raises:
        InputError: it does.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            "training: it needs more memory than is free on the GPU: choose a smaller "
            f"training.batch_tokens ({config.batch_tokens}) or a smaller model, or end other "
            "programs that use the GPU"
        ) from error
