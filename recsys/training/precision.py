"""The number format that training computes in."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["bf16-mixed", "32-true"]


def choose_precision(wanted: Literal["auto", "bf16", "float32"]) -> tuple[Precision, str]:
    """Lightning's name of the precision, and why it was chosen, for the user.

    bf16 pays where the hardware multiplies it: on the reference CPU (AMX) five times faster than
    float32. Elsewhere it is emulated and slower.
    """
    if wanted != "auto":
        return ("bf16-mixed" if wanted == "bf16" else "32-true"), "as configured"
    if torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16-mixed", "the GPU has it") if fast else ("32-true", "the GPU has no bf16")
    found = torch.cpu.get_capabilities()
    for feature in ("amx_bf16", "avx512_bf16"):
        if found.get(feature):
            return "bf16-mixed", f"the processor has {feature}"
    return "32-true", "the processor has no bf16 instructions"


def working_dtype(wanted: Literal["auto", "bf16", "float32"]) -> torch.dtype:
    """What matrix products compute in; see `choose_precision`."""
    return torch.bfloat16 if choose_precision(wanted)[0] == "bf16-mixed" else torch.float32
