"""The processes that torchrun started to train one model; without torchrun there is one process."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from recsys.errors import InputError

_groups = itertools.count()
"""The numbers of the groups of this process, which are the same in all."""


def join() -> None:
    """Join the process group, if torchrun started several; does nothing in a group.

    Each has a GPU of its own, where there are any.

    Raises:
        InputError: there are fewer GPUs than processes.
    """
    if not _several_started() or dist.is_initialized():
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        if (started := int(os.environ["LOCAL_WORLD_SIZE"])) > gpus:
            raise InputError(
                f"torchrun started {started} processes on this machine, which has {gpus} GPUs: "
                "start as many, or train on the CPU with CUDA_VISIBLE_DEVICES="
            )
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, world_size = next(rendezvous("env://"))
    # torchrun's store outlives a group: the next one must not find the addresses of this one.
    store = PrefixStore(f"recsys/{next(_groups)}", store)
    backends = "cpu:gloo,cuda:nccl" if gpus else "gloo"  # some of what is exchanged is on the CPU
    dist.init_process_group(backends, store=store, rank=rank, world_size=world_size)


def leave() -> None:
    """Leave the process group, if there is one: all together, at the end of what they do.

    Each is alone then, and the first one. After an error none leaves: torchrun ends them all.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def count() -> int:
    """Return the number of processes in the group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def index() -> int:
    """Return the rank of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def count_here() -> int:
    """Return the number of processes on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if dist.is_initialized() else 1


def is_first() -> bool:
    """Return whether this is the first process, which alone writes, prints and logs."""
    return index() == 0


def all_reduce_sum(values: Tensor) -> Tensor:
    """Return the sum of the tensors of all processes, which have equal shapes."""
    total = values.clone()
    if count() > 1:
        dist.all_reduce(total)
    return total


def all_gather_rows(rows: Tensor) -> Tensor:
    """Return the rows [n, ...] of all processes, whose numbers may differ, one after the other."""
    if count() == 1:
        return rows
    sizes = torch.zeros(count(), dtype=torch.int64, device=rows.device)
    sizes[index()] = len(rows)
    dist.all_reduce(sizes)
    padded = rows.new_zeros(int(sizes.max()), *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in range(count())]
    dist.all_gather(gathered, padded)
    return torch.cat([own[:size] for own, size in zip(gathered, sizes.tolist(), strict=True)])


def broadcast_from_rank0(value: bool) -> bool:
    """Return the value of the first process."""
    return bool(all_reduce_sum(torch.tensor(int(is_first() and value))))


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Run the block in the first process, then in the others."""
    join()
    if not is_first():
        dist.barrier()
    yield
    if is_first() and count() > 1:
        dist.barrier()


def refuse_several(command: str) -> None:
    """Refuse to run a single-process command under torchrun.

    Raises:
        InputError: torchrun started several processes.
    """
    if _several_started():
        raise InputError(f"{command}: runs in one process; under torchrun use train or run")


def _several_started() -> bool:
    # What torchrun sets may also be set alone.
    return dist.is_torchelastic_launched() and os.environ.get("WORLD_SIZE", "1") != "1"
