"""The choice of GPU kernels for a training: those that are right here, and faster than torch."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from importlib.util import find_spec
from typing import Any

import pytorch_lightning as pl
import torch

from recsys.config import Experiment
from recsys.errors import one_line
from recsys.model.decayed_attention import Attend
from recsys.model.target_attention import TargetAttentionHead
from recsys.timing import WORTHWHILE, median_share
from recsys.training import processes
from recsys.training.kernel_trials import Function, Shape, attention_trial, softmax_trial
from recsys.training.module import TrainingModule
from recsys.training.objective import CatalogueObjective

logger = logging.getLogger(__name__)

_TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""How far a kernel's result may be from torch's, as a share of its norm."""

_shares: dict[Hashable, float] = {}
"""The share of torch's time that each kernel took, by what it was compared on: the slices of a race
and a refit have the same shapes. Infinite for one that failed or returned something else."""


class KernelChoice(pl.Callback):
    """Compares the kernels with torch in a training on a GPU, and takes those worth taking.

    A kernel is used if it compiles, returns what torch returns, and takes clearly less time for
    the training's shapes; the log says so, or why not. Another training of the process with these
    shapes takes what was measured. The first step is torch's, because its operations are counted,
    and those of kernels cannot be. After the training the head has its function in torch again,
    which runs on any device.

    Args:
        module: what is trained.
        experiment: the settings, which give the shapes.
        dtype: that of the matrix products.
    """

    def __init__(self, module: TrainingModule, experiment: Experiment, dtype: torch.dtype) -> None:
        self._module = module
        self._experiment = experiment
        self._dtype = dtype
        self._compared = False
        self._replaced: tuple[TargetAttentionHead, Attend] | None = None

    def on_train_batch_end(self, *_: Any) -> None:
        """Choose after the first step."""
        self.settle()

    def settle(self) -> None:
        """Choose if the module is on a GPU, and nothing has been chosen yet."""
        if self._compared or self._module.device.type != "cuda":
            return
        self._compared = True
        if find_spec("triton") is None:
            logger.debug("kernels: torch's: triton is not installed")
            return
        self.choose()

    def choose(self) -> None:
        """Compare on the module's device, and replace what a kernel does better."""
        from recsys.kernels.decayed_attention import fused_averages, fused_sums
        from recsys.kernels.softmax import softmax_gradient

        head, objective = self._module.model.head, self._module.objective
        shape = Shape.of(self._experiment, self._module.model, self._dtype)
        tolerance = _TOLERANCE[self._dtype]
        if isinstance(head, TargetAttentionHead):
            fused = fused_averages if head.pooling == "average" else fused_sums
            in_torch, dim = head.attend, head.key.out_features // head.num_heads
            if worthwhile(
                "target attention",
                (shape, head.pooling, dim),
                lambda: attention_trial(shape, fused, dim),
                lambda: attention_trial(shape, in_torch, dim),
                tolerance,
            ):
                self._replaced = head, in_torch
                head.attend = fused
        if isinstance(objective, CatalogueObjective):
            smoothing = self._experiment.training.label_smoothing
            by_candidate = head.kv_source is not None
            gradient = objective.softmax_gradient
            if worthwhile(
                "softmax",
                (shape, smoothing, by_candidate),
                lambda: softmax_trial(
                    shape, softmax_gradient, smoothing, by_candidate=by_candidate
                ),
                lambda: softmax_trial(shape, gradient, smoothing, by_candidate=by_candidate),
                tolerance,
            ):
                objective.softmax_gradient = softmax_gradient

    def on_train_end(self, *_: Any) -> None:
        """Give the head its function in torch again."""
        if self._replaced is not None:
            head, in_torch = self._replaced
            head.attend = in_torch

    def on_exception(self, *_: Any) -> None:
        """See `on_train_end`."""
        self.on_train_end()


def worthwhile(
    name: str,
    case: Hashable,
    kernel: Callable[[], Function],
    reference: Callable[[], Function],
    tolerance: float,
) -> bool:
    """Return whether a kernel is right and clearly faster, and log it.

    The first process compares, once in each case, and all take its choice.

    Args:
        name: what is computed, for the log.
        case: all that decides how long it takes.
        kernel: prepares the computation with the kernel.
        reference: prepares the same with torch.
        tolerance: see `_TOLERANCE`.
    """
    taken = False
    if processes.is_first():
        if (name, case) not in _shares:
            _shares[name, case] = _share_of_time(name, kernel, reference, tolerance)
        share = _shares[name, case]
        taken = share < WORTHWHILE
        if share < math.inf:
            way = "a Triton kernel" if taken else "torch"
            logger.debug("%s: %s: the kernel took %.2f of torch's time", name, way, share)
    return processes.broadcast_from_rank0(taken)


def _share_of_time(
    name: str,
    kernel: Callable[[], Function],
    reference: Callable[[], Function],
    tolerance: float,
) -> float:
    """Return the time of a kernel as a share of torch's; infinite if it is wrong or fails."""
    try:
        return _compare(name, kernel(), reference(), tolerance)
    # A compiler, a driver or the memory may fail in any way, and training goes on without.
    except Exception as error:  # noqa: BLE001
        logger.warning("%s: torch: the kernel failed: %s", name, one_line(error, 200))
        return math.inf


def _compare(name: str, kernel: Function, reference: Function, tolerance: float) -> float:
    for found, expected in zip(kernel(), reference(), strict=True):
        difference = torch.linalg.vector_norm(found - expected, dtype=torch.float32)
        norm = torch.linalg.vector_norm(expected, dtype=torch.float32).clamp_(min=1)
        share = (difference / norm).item()
        if not share <= tolerance:  # nor is NaN
            logger.warning(
                "%s: torch: the kernel's result differs by %.2g of its norm", name, share
            )
            return math.inf
    return median_share(_to_the_end(kernel), _to_the_end(reference))


def _to_the_end(function: Function) -> Callable[[], None]:
    """Return the function, but wait for the GPU at its end."""

    def run() -> None:
        device = function()[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run
