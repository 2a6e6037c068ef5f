"""The state of a training whose item embeddings are divided over processes, whole and in parts.

Checkpoints and bundles are those of any training: the first process collects the rows of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from recsys.model.division import Division
from recsys.training.state import TrainingState

ITEM_ROWS = "items.weight"
"""The divided weight of a model; its moments begin with the name."""


def own_part(state: TrainingState, division: Division) -> TrainingState:
    """Return the state with the rows of this process only."""
    return _changed(state, lambda tensors: _own_rows(tensors, division))


def whole(state: TrainingState, division: Division) -> TrainingState:
    """Return the state with all rows in the first process, and with its own rows in another.

    All processes call it together.
    """
    return _changed(state, lambda tensors: collected(tensors, division))


def _changed(
    state: TrainingState, change: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
) -> TrainingState:
    """Return the state with all that has rows of items changed, in one order in all processes."""
    curve = replace(state.curve, best_weights=change(state.curve.best_weights))
    weights, moments, average = map(change, (state.weights, state.moments, state.average))
    return replace(state, weights=weights, moments=moments, curve=curve, average=average)


def collected(tensors: Mapping[str, Tensor], division: Division) -> dict[str, Tensor]:
    """Return tensors with all rows, on the CPU of the first process; another keeps its own rows.

    All processes call it together, with tensors of the same names in one order.
    """
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        rows = division.collected(value) if _is_divided(name, value) else None
        found[name] = value if rows is None else rows
    return found


def _own_rows(tensors: Mapping[str, Tensor], division: Division) -> dict[str, Tensor]:
    return {
        # A copy, which does not keep the whole table in memory.
        name: value[division.own].clone() if _is_divided(name, value) else value
        for name, value in tensors.items()
    }


def _is_divided(name: str, value: Tensor) -> bool:
    """Whether it has rows of items; the moments have a number of steps too."""
    return name.startswith(ITEM_ROWS) and value.dim() > 0
