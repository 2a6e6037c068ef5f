"""The number of logits that training makes at once, by device."""

from __future__ import annotations

import torch

_CPU = 1 << 22
"""8 MiB of bf16: what fits into a processor's cache is not written to memory."""
_GPU = 1 << 27
"""256 MiB of bf16, 512 MiB of float32. A GPU needs large products, and a launch costs the same
whatever its size. The figure is not measured yet."""


def logits_per_chunk(device: torch.device) -> int:
    """Return the number of logits that training makes at once on a device."""
    return _CPU if device.type == "cpu" else _GPU
