"""The attention weights of a model's layers, recorded during a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from recsys.model.attention import MultiHeadAttention

LayerKind = Literal["encoder", "decoder", "cross"]
"""Which tokens look at which: those of the history at one another; generated ones at one another;
generated ones at those of the history."""

_KINDS: dict[str, LayerKind] = {
    "encoder attention": "encoder",
    "decoder attention": "decoder",
    "decoder cross_attention": "cross",
}
"""Kinds by the name of the stack and of the layer in a block."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """The attention of one layer in a forward pass."""

    kind: LayerKind
    block: int
    """The position of its block in the stack, from 1."""
    weights: Tensor
    """[B, H, Q, K]; each row sums to 1."""
    causal: bool
    """Whether each row sees only the columns up to its own position."""


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the weights [B, H, Q, K] of each `MultiHeadAttention` of a model, by its name.

    They are those of its last forward pass inside the block, in the order of the passes.
    """
    recorded: dict[str, Tensor] = {}

    def record(
        name: str, layer: MultiHeadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any
    ) -> None:
        recorded[name] = layer.weights(*args, **kwargs)

    hooks = [
        layer.register_forward_hook(partial(record, name), with_kwargs=True)
        for name, layer in model.named_modules()
        if isinstance(layer, MultiHeadAttention)
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def recorded_layers(recorded: dict[str, Tensor], *, causal_encoder: bool) -> list[AttentionLayer]:
    """The layers that `record_attention` recorded in a model with an encoder, maybe a decoder."""
    layers = []
    for name, weights in recorded.items():
        stack, _, number, layer = name.split(".")  # such as encoder.blocks.0.attention
        kind = _KINDS[f"{stack} {layer}"]
        causal = kind == "decoder" or (kind == "encoder" and causal_encoder)
        layers.append(AttentionLayer(kind, int(number) + 1, weights, causal))
    return layers
