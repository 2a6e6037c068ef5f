"""The running average of the weights after each epoch, which the last epochs count most in.

Shamir and Zhang 2013, "Stochastic gradient descent for non-smooth optimization" (polynomial-decay
averaging), https://arxiv.org/abs/1212.1824.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from recsys.model.protocols import Model

_EMPHASIS = 5
"""η: after t epochs the average is about t / (η + 2) epochs old."""


@torch.no_grad()
def averaged(
    before: Mapping[str, Tensor], weights: Mapping[str, Tensor], epochs: int
) -> dict[str, Tensor]:
    """Return the average after another epoch.

    (1 - a) times the one before plus a times the weights, a = (η + 1) / (t + η) after t epochs: the
    weights themselves after the first. What is no floating-point number is taken as it is.

    Args:
        before: the average after the epoch before; empty before the first.
        weights: those after the epoch; they are copied.
        epochs: the number of epochs, t, with this one.

    >>> averaged({"w": torch.tensor(0.0)}, {"w": torch.tensor(7.0)}, 2)
    {'w': tensor(6.)}
    """
    share = (_EMPHASIS + 1) / (epochs + _EMPHASIS)
    return {
        name: before[name].to(weight.device).lerp(weight, share)
        if name in before and weight.is_floating_point()
        else weight.detach().clone()
        for name, weight in weights.items()
    }


@contextmanager
def with_weights(model: Model, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a model other weights for a while; none are given if they are empty."""
    if not weights:
        yield
        return
    own = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    try:
        model.load_state_dict(weights)
        yield
    finally:
        model.load_state_dict(own)
