"""The memory of the GPU that trains: what does not fit is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recsys.config import TrainingConfig
from recsys.errors import InputError


def gpu_memory() -> int | None:
    """Return the bytes of memory of the GPU; None if there is none."""
    return torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else None


@contextmanager
def gpu_memory_suffices(config: TrainingConfig) -> Iterator[None]:
    """Say in one line that the block needs more memory than the GPU has.

    Raises:
        InputError: it does.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            "training: a step does not fit into the memory of the GPU: choose a smaller "
            f"training.batch_tokens ({config.batch_tokens}) or a smaller model"
        ) from error
