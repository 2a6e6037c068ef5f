"""The choice of the matrices by which target attention sums over positions: the faster ones."""

from __future__ import annotations

import logging

import torch

from recsys.config import Experiment
from recsys.model.decayed_sums import NARROW, WIDE
from recsys.model.protocols import Model
from recsys.model.target_attention import TargetAttentionHead
from recsys.timing import WORTHWHILE
from recsys.training import processes, product_timing
from recsys.training.precision import Precision

logger = logging.getLogger(__name__)


def settle_triangles(experiment: Experiment, model: Model, precision: Precision) -> None:
    """Set the size of the triangular matrices of a model's target attention, if it has one.

    On a CPU in bf16 both sizes are timed: no processor flag tells which is faster. The first
    process measures, and all processes take its choice. Elsewhere nothing is to be chosen.

    The choice is kept with the other measurements of the machine. A training that resumes where
    these are gone may take the other size, and then differs by rounding.

    Args:
        experiment: the settings of the model.
        model: what is to be trained, on the CPU.
        precision: that of the training.
    """
    head = model.head
    if not isinstance(head, TargetAttentionHead) or precision != "bf16":
        return
    if torch.cuda.is_available():
        return
    length = experiment.model.max_sequence_length
    share = product_timing.narrow_share(length) if processes.is_first() else 1.0
    faster = processes.broadcast_from_rank0(share < WORTHWHILE)
    taken = NARROW if faster else WIDE
    head.sum_by(taken)
    logger.debug(
        "target attention: matrices of up to %d positions (with %d %.2f of the time with %d)",
        *(taken.single, NARROW.single, share, WIDE.single),
    )
