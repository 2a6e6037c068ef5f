"""The processes that torchrun has started to train one model together; alone, the first of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from recsys.errors import InputError


def join() -> None:
    """Meet the other processes, if torchrun has started any; a second call does nothing."""
    if not _together() or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # gloo for tensors on CPUs, NCCL for those on GPUs


def count() -> int:
    """How many have met."""
    return dist.get_world_size() if dist.is_initialized() else 1


def index() -> int:
    """Which of them this one is, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def count_here() -> int:
    """How many of them are on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if dist.is_initialized() else 1


def is_first() -> bool:
    """The first one writes, prints and keeps the record."""
    return index() == 0


def all_reduce_sum(values: Tensor) -> Tensor:
    """The sum of the processes' tensors of equal shape."""
    if count() == 1:
        return values
    whole = values.clone()
    dist.all_reduce(whole)
    return whole


def all_gather(values: Tensor) -> Tensor:
    """The processes' tensors of equal shape, [P, ...]."""
    if count() == 1:
        return values[None]
    parts = [torch.empty_like(values) for _ in range(count())]
    dist.all_gather(parts, values)
    return torch.stack(parts)


def broadcast_from_rank0(value: bool) -> bool:
    """What the first process says."""
    if count() == 1:
        return value
    said = torch.tensor([value])
    dist.broadcast(said, src=0)
    return bool(said)


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """The first process goes through the block alone, then the others do."""
    join()
    if not is_first():
        dist.barrier()
    yield
    if is_first() and count() > 1:
        dist.barrier()


def refuse_several(what: str) -> None:
    """Of commands that know one process alone.

    Raises:
        InputError: torchrun has started several.
    """
    if _together():
        raise InputError(f"{what}: runs in one process; under torchrun use train or run")


def _together() -> bool:
    return dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1
