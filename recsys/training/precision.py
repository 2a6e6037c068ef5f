"""The floating-point precision of training."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["bf16-mixed", "32-true"]


def choose_precision(wanted: Literal["auto", "bf16", "float32"]) -> tuple[Precision, str]:
    """Return Lightning's name of the precision, and the reason for the choice.

    bf16 pays off where the hardware has units for bf16 products: with AMX they are five times as
    fast as in float32. With only AVX-512's bf16 instructions a step takes 1.2 to 1.4 times as long
    as in float32 (measured: CHANGELOG.md); elsewhere bf16 is emulated.
    """
    if wanted != "auto":
        return ("bf16-mixed" if wanted == "bf16" else "32-true"), "as configured"
    if torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16-mixed", "the GPU supports it") if fast else ("32-true", "the GPU has no bf16")
    if torch.cpu.get_capabilities().get("amx_bf16"):
        return "bf16-mixed", "the processor has amx_bf16"
    return "32-true", "the processor has no units for products in bf16"


def working_dtype(wanted: Literal["auto", "bf16", "float32"]) -> torch.dtype:
    """Return the dtype of matrix products; see `choose_precision`."""
    return torch.bfloat16 if choose_precision(wanted)[0] == "bf16-mixed" else torch.float32
