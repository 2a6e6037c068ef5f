"""The device that trainings run on: the current GPU, or the CPU."""

from __future__ import annotations

import torch

from recsys.training import processes

NO_CUBLAS_CONTEXT = "Attempting to run cuBLAS, but there was no current CUDA context"
"""How torch's warning begins at the first matrix product of autograd's thread on a GPU, which makes
a context there: nothing is wrong, and users cannot avoid it."""


def training_device() -> str:
    """Return what trainings run on: cuda, or cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def gpus() -> list[int]:
    """Return the GPU that this process computes on, if any."""
    return [torch.cuda.current_device()] if torch.cuda.is_available() else []


def lightning_devices() -> list[int] | int:
    """Return Lightning's ``devices``: the GPU of a single process, or the number of processes here.

    A single GPU by its number: with 1, Lightning would take the first, whichever is current.
    """
    return gpus() if processes.count() == 1 and gpus() else processes.count_here()
