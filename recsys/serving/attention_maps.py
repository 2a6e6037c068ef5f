"""The attention maps of a model: the weights of every block and head for one history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.errors import InputError
from recsys.inference.generator import SequenceGenerator
from recsys.inference.model_inputs import model_inputs, read_histories
from recsys.inference.ranking import top_k
from recsys.model.recorded_attention import AttentionLayer, LayerKind
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.serving.bundle import ModelBundle
from recsys.serving.ids import id_series, known_tokens
from recsys.serving.inputs import OneHistory
from recsys.serving.time_scale import RequestTime

Kind = LayerKind | Literal["target"]
"""Which rows look at which columns: those of `LayerKind`; or candidates at purchases (target)."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMap:
    """The weights of one attention layer with H heads: rows look at columns."""

    kind: Kind
    weights: NDArray[np.float32]
    """[H, rows, columns]; each row sums to 1."""
    rows: list[str]
    """Distinct labels."""
    columns: list[str]
    """Distinct labels."""
    heads: list[str]
    """Labels [H]."""
    block: int | None = None
    """The position of its block in the stack, from 1; None for the head of the model."""
    causal: bool = False
    """Whether each row sees only the columns up to its own position."""

    @property
    def name(self) -> str:
        """A name fit for a file, such as encoder-block-1."""
        return self.kind if self.block is None else f"{self.kind}-block-{self.block}"

    def latest(self, count: int) -> AttentionMap:
        """The map of the latest ``count`` purchases; a first column sums up those before them.

        Rows still sum to 1. Generated purchases and candidates are all kept.
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
    """The attention of a model when it reads a history, and scores items or generates purchases.

    Args:
        bundle: a model with a Transformer, or with target attention.
        history: item ids, oldest first, or a log of one user, with the columns of all that the
            model reads; items outside the catalogue are skipped, and only the latest ones are read,
            as many as the model was trained with.
        items: ids of the candidates of target attention; if empty, the ten best ones.
        n: the number of purchases that a sequence-to-sequence model generates greedily; 5 if None.
        at: the time of the request; for the models that read it.

    Returns:
        A map of each block of the encoder (none of HSTU blocks, whose weights do not sum to 1 and
        may be below 0); then two of each block of the decoder; then that of target attention.
        Purchases are labelled with their position in the history (from 1) and the item's name or
        title if the item table has them, else its id; generated ones with their step; candidates
        with their rank, or their position among the given ones.

    Raises:
        InputError: the model has no attention, or not the kind that items or n are for; an item is
            not in the catalogue; no item of the history is; no item is left to recommend or
            generate; see `ModelBundle.read_history`.
    """
    user = bundle.read_history(history, at)
    model, vocabulary = bundle.model, bundle.vocabulary
    generative = model if isinstance(model, SequenceToSequence) else None
    given = id_series(items, "items")
    if len(given) and model.head.kv_source is None:
        raise InputError(f"{bundle.path}: has no target attention that items could be given for")
    if n is not None and generative is None:
        raise InputError(f"{bundle.path}: has no decoder that could generate n={n} purchases")
    candidates = known_tokens(given, vocabulary, "item", "catalogue") if len(given) else None
    histories = user.histories
    if not len(histories.items):
        raise InputError("history: none of its items is in the catalogue: nothing to look at")
    longest = bundle.experiment.model.max_sequence_length
    recent = histories.latest(longest)
    purchases = _labels(bundle, recent.items, user.positions[-longest:] + 1)
    generated = np.empty(0, dtype=np.int32)
    if generative is not None:
        generated = _generate(bundle, generative, histories, 5 if n is None else n)
    with torch.inference_mode():
        # One pass over all that was generated: the last token is not read.
        tokens = torch.from_numpy(generated[None, :-1]).to(model.items.weight.device)
        layers = model.attention_layers(model_inputs(model, recent), tokens)
    steps = _labels(bundle, generated, np.arange(1, len(generated) + 1), "+")
    maps = [_layer_map(layer, purchases, steps) for layer in layers]
    maps += _head_maps(bundle, histories, purchases, candidates)
    if not maps:
        raise InputError(
            f"{bundle.path}: its model has no attention to look at, of weights that sum to 1"
        )
    return maps


def _layer_map(layer: AttentionLayer, purchases: list[str], steps: list[str]) -> AttentionMap:
    """The map of a layer, for a batch of one."""
    # A masked-item model reads one masked item after the history.
    history = [*purchases, "the next one"][: layer.weights.shape[-1]]
    labels: dict[LayerKind, tuple[list[str], list[str]]] = {
        "encoder": (history, history),
        "decoder": (steps, ["begin", *steps[:-1]]),
        "cross": (steps, purchases),
    }
    weights = layer.weights[0].cpu().numpy()
    heads = [f"head {head}" for head in range(1, len(weights) + 1)]
    return AttentionMap(
        layer.kind, weights, *labels[layer.kind], heads, layer.block, causal=layer.causal
    )


@torch.inference_mode()
def _head_maps(
    bundle: ModelBundle,
    histories: Histories,
    purchases: list[str],
    candidates: NDArray[np.int32] | None,
) -> list[AttentionMap]:
    """The map of the head's attention, if it has any; by default from the ten best items."""
    model = bundle.model
    if model.head.kv_source is None:
        return []
    if candidates is None:
        k = min(10, bundle.num_items)
        best, _ = top_k(bundle.scorer, histories, k, bundle.manifest.protocol.seen)
        candidates = _without_padding(best[0], "recommend")
    recent = histories.latest(bundle.experiment.model.max_sequence_length)
    history, lengths = read_histories(model, recent)
    represented = model.head.represent_candidates(
        model.items(torch.from_numpy(candidates).to(lengths.device))
    )
    attention = model.head.attention(history, represented, lengths)
    if attention is None:
        return []
    rows = _labels(bundle, candidates, np.arange(1, len(candidates) + 1))
    heads = [
        f"head {head}, half-life {half_life:.3g} purchases"
        for head, half_life in enumerate(attention.half_lives, 1)
    ]
    weights = attention.weights[0].mT.cpu().numpy()
    return [AttentionMap("target", weights, rows, purchases, heads)]


def _generate(
    bundle: ModelBundle, model: SequenceToSequence, histories: Histories, n: int
) -> NDArray[np.int32]:
    """The item tokens of n greedily generated purchases."""
    generator = SequenceGenerator(model, bundle.experiment.model.max_sequence_length)
    lists, _ = generator.generate(histories, n, bundle.manifest.protocol.seen)
    return _without_padding(lists[0], "generate")


def _without_padding(tokens: NDArray[np.int32], verb: str) -> NDArray[np.int32]:
    """The item tokens before the PAD at the end."""
    if not tokens.any():
        raise InputError(f"history: has every item of the catalogue: no item is left to {verb}")
    items: NDArray[np.int32] = tokens[tokens != PAD]
    return items


def _labels(
    bundle: ModelBundle, tokens: NDArray[np.int32], numbers: NDArray[np.int64], sign: str = ""
) -> list[str]:
    """A number and the name of each item: the number distinguishes purchases of one item."""
    table = bundle.item_table[tokens - 1]
    texts = [
        pl.col(column).cast(pl.String).str.replace_all(r"\s+", " ").str.strip_chars()
        for column in (*bundle.name_columns, "item_id")
    ]
    names = table.select(pl.coalesce(text.replace("", None) for text in texts)).to_series()
    return [f"{sign}{number} {name}" for number, name in zip(numbers, names, strict=True)]
