"""Where a model looks: the attention weights of every block and head for one history."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recsys.data.histories import PAD, Histories
from recsys.errors import InputError
from recsys.inference.generator import SequenceGenerator
from recsys.inference.model_scorer import read_histories
from recsys.inference.ranking import top_k
from recsys.model.attention import MultiHeadAttention
from recsys.model.factorisation import FactorisationMachine
from recsys.model.masked_item import MaskedItemModel
from recsys.model.next_item import NextItemModel
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.model.target_attention import TargetAttentionHead
from recsys.serving.bundle import ModelBundle
from recsys.serving.ids import RequestTime, known_tokens
from recsys.serving.inputs import OneHistory

Kind = Literal["encoder", "decoder", "cross", "target"]
"""Who looks at what: purchases at purchases; what is written at what was written, and at the
purchases; candidates at the purchases."""

_LAYERS: dict[str, Kind] = {
    "encoder attention": "encoder",
    "decoder attention": "decoder",
    "decoder cross_attention": "cross",
}
"""Attention layers by the stack they are in and their name in a block."""


_Labels = dict[Kind, tuple[list[str], list[str]]]
"""Of rows and columns."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap:
    """The weights of one attention layer with H heads: rows look at columns."""

    kind: Kind
    weights: NDArray[np.float32]
    """[H, rows, columns]; each row sums to 1."""
    rows: list[str]
    """Labels, each once."""
    columns: list[str]
    """Labels, each once."""
    heads: list[str]
    """Labels [H]."""
    block: int | None = None
    """Its place in the stack, from 1; None for the head of the model."""
    causal: bool = False
    """Each row sees only the columns up to its own place."""

    @property
    def name(self) -> str:
        """Fit for a file, e.g. encoder-block-1."""
        return self.kind if self.block is None else f"{self.kind}-block-{self.block}"

    def newest(self, count: int) -> AttentionMap:
        """With the newest ``count`` purchases alone; a first column has the sum of those before.

        Rows go on summing to 1. What was written, and candidates, are all kept.
        """
        older = len(self.columns) - count
        if self.kind == "decoder" or older <= 0:
            return self
        first = older if self.kind == "encoder" else 0
        weights = self.weights[:, first:]
        rest = weights[..., :older].sum(axis=-1, keepdims=True)
        return replace(
            self,
            weights=np.concatenate([rest, weights[..., older:]], axis=-1),
            rows=self.rows[first:],
            columns=[f"the {older} before", *self.columns[older:]],
        )


def inspect(
    bundle: ModelBundle,
    history: OneHistory,
    *,
    items: Sequence[Any] = (),
    n: int | None = None,
    at: RequestTime | None = None,
) -> list[AttentionMap]:
    """Where a model looks when it reads a history, and scores items or writes purchases.

    Args:
        bundle: a model with a Transformer, or with target attention.
        history: item ids, oldest first, or a log of one user, with the columns of all that the
            model reads; items outside the catalogue are skipped, and only the newest ones are read,
            as many as the model was trained with.
        items: ids of the candidates of target attention; none: the ten best ones.
        n: purchases that a sequence-to-sequence model writes greedily; None: 5.
        at: when the recommendation is asked for; for the models that read it.

    Returns:
        A map of each block of the encoder (none of HSTU blocks, whose weights do not sum to 1 and
        may be below 0); then two of each block of the decoder; then that of
        target attention. Purchases are labelled with their place in the history (from 1) and the
        item's name or title if the item table has them, else its id; what is written with its
        step; candidates with their place in the ranking, or among the given ones.

    Raises:
        InputError: the model has no attention, or not the kind that items or n are for; an item is
            not in the catalogue; no item of the history is; nothing is left to recommend or write;
            see `ModelBundle.read_history`.
    """
    asked = bundle.read_history(history, at)
    model, vocabulary = bundle.model, bundle.vocabulary
    target = isinstance(model.head, TargetAttentionHead)
    if items and not target:
        raise InputError(f"{bundle.path}: has no target attention that items could be given for")
    if n is not None and not isinstance(model, SequenceToSequence):
        raise InputError(f"{bundle.path}: has no decoder that could write n={n} purchases")
    candidates = known_tokens(items, vocabulary, "item", "catalogue") if items else None
    known = asked.histories
    if not len(known.items):
        raise InputError("history: none of its items is in the catalogue: nothing to look at")
    read = slice(-bundle.experiment.model.max_sequence_length, None)
    purchases = _labels(bundle, known.items[read], asked.positions[read] + 1)
    if isinstance(model, SequenceToSequence):
        maps = _written(bundle, model, known, purchases, 5 if n is None else n)
    elif isinstance(model, FactorisationMachine):
        maps = []
    elif isinstance(model, MaskedItemModel):
        maps = _scored(bundle, model, known, [*purchases, "the next one"], candidates)
    else:
        maps = _scored(bundle, model, known, purchases, candidates)
    if not maps:
        raise InputError(
            f"{bundle.path}: its model has no attention to look at, of weights that sum to 1"
        )
    return maps


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The weights [B, H, Q, K] of each `MultiHeadAttention` of a model, by its name in it.

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


@torch.inference_mode()
def _scored(
    bundle: ModelBundle,
    model: NextItemModel | MaskedItemModel,
    known: Histories,
    purchases: list[str],
    candidates: NDArray[np.int32] | None,
) -> list[AttentionMap]:
    """The maps of an encoder and, if it is target attention, its head."""
    recent = known.newest(bundle.experiment.model.max_sequence_length)
    with record_attention(model) as recorded:
        history, lengths = read_histories(model, recent)
    maps = _blocks(recorded, {"encoder": (purchases, purchases)}, model.encoder.causal)
    head = model.head
    if isinstance(head, TargetAttentionHead):
        if candidates is None:
            k = min(10, bundle.num_items)
            best, _ = top_k(bundle.scorer, known, k, bundle.manifest.protocol.seen)
            candidates = _some(best[0], "recommend")
        rows = _labels(bundle, candidates, np.arange(1, len(candidates) + 1))
        side = head.represent_candidates(
            model.items(torch.from_numpy(candidates).to(lengths.device))
        )
        weights = head.weights(history, side, lengths)[0].mT.cpu().numpy()
        half_lives = [math.log(2) / decay for decay in head.decays.tolist()]
        heads = [
            f"head {h}, half-life {life:.3g} purchases" for h, life in enumerate(half_lives, 1)
        ]
        maps.append(AttentionMap("target", weights, rows, purchases, heads))
    return maps


@torch.inference_mode()
def _written(
    bundle: ModelBundle, model: SequenceToSequence, known: Histories, purchases: list[str], n: int
) -> list[AttentionMap]:
    """The maps of an encoder and a decoder that writes n purchases."""
    generator = SequenceGenerator(model, bundle.experiment.model.max_sequence_length)
    lists, _ = generator.generate(known, n, bundle.manifest.protocol.seen)
    tokens = _some(lists[0], "write")
    recent = known.newest(bundle.experiment.model.max_sequence_length)
    items, lengths = torch.from_numpy(recent.padded()), torch.from_numpy(recent.lengths)
    device = model.items.weight.device
    with record_attention(model) as recorded:  # one pass over what was written, token by token
        written = torch.from_numpy(tokens[None, :-1]).to(device)
        model.write(model.remember(items.to(device), lengths.to(device)), written)
    steps = _labels(bundle, tokens, np.arange(1, len(tokens) + 1), "+")
    labels: _Labels = {
        "encoder": (purchases, purchases),
        "decoder": (steps, ["begin", *steps[:-1]]),
        "cross": (steps, purchases),
    }
    return _blocks(recorded, labels, model.encoder.causal)


def _blocks(
    recorded: dict[str, Tensor], labels: _Labels, encoder_is_causal: bool
) -> list[AttentionMap]:
    """The maps of what was recorded, of a batch of one."""
    maps = []
    for name, weights in recorded.items():
        stack, _, number, layer = name.split(".")  # such as encoder.blocks.0.attention
        kind = _LAYERS[f"{stack} {layer}"]
        heads = [f"head {head}" for head in range(1, weights.shape[1] + 1)]
        causal = kind == "decoder" or (kind == "encoder" and encoder_is_causal)
        block = int(number) + 1
        maps.append(
            AttentionMap(kind, weights[0].cpu().numpy(), *labels[kind], heads, block, causal)
        )
    return maps


def _some(tokens: NDArray[np.int32], verb: str) -> NDArray[np.int32]:
    """Item tokens without the PAD behind them."""
    if not tokens.any():
        raise InputError(f"history: has every item of the catalogue: nothing is left to {verb}")
    some: NDArray[np.int32] = tokens[tokens != PAD]
    return some


def _labels(
    bundle: ModelBundle, tokens: NDArray[np.int32], numbers: NDArray[np.int64], sign: str = ""
) -> list[str]:
    """A number and the name of each item: the number tells two purchases of one item apart."""
    table = bundle.item_table[tokens - 1]
    texts = [
        pl.col(column).cast(pl.String).str.replace_all(r"\s+", " ").str.strip_chars()
        for column in (*bundle.name_columns, "item_id")
    ]
    names = table.select(pl.coalesce(text.replace("", None) for text in texts)).to_series()
    return [f"{sign}{number} {name}" for number, name in zip(numbers, names, strict=True)]
