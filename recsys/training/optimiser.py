"""AdamW that updates only the rows of an embedding table that a step has read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class RowwiseAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` that updates only the rows of a sparse gradient.

    A row that was not read keeps its moments and has no weight decay until it is read again, as in
    `torch.optim.SparseAdam`, which supports neither weight decay nor dense parameters. The cost of
    a step depends on the rows it reads, not on the size of the catalogue.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; see `torch.optim.Optimizer.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        sparse: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None and table.grad.is_sparse:
                    self._step_rows(table, table.grad.coalesce(), group)
                    sparse.append((table, table.grad))
                    table.grad = None
        super().step()
        for table, gradient in sparse:
            table.grad = gradient
        return loss

    def _step_rows(self, table: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(table)
            state["exp_avg_sq"] = torch.zeros_like(table)
        state["step"] += 1
        step, (beta1, beta2), rate = float(state["step"]), group["betas"], float(group["lr"])
        rows, values = gradient.indices()[0], gradient.values().to(table.dtype)
        mean = state["exp_avg"][rows].lerp_(values, 1 - beta1)
        square = state["exp_avg_sq"][rows].lerp_(values.square(), 1 - beta2)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        spread = square.sqrt_().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        kept = table[rows] * (1 - rate * group["weight_decay"])
        table[rows] = kept.addcdiv_(mean, spread, value=-rate / (1 - beta1**step))
