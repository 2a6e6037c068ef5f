"""The weights of a model for a catalogue that has grown.

Items are matched by their ids. A new one that the model knows nothing of starts as the mean of its
first neighbours: the nearest known items before and after it in the histories. Random rows would
first have to be trained away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from recsys.data.histories import PAD, Histories
from recsys.errors import InputError
from recsys.model.embeddings import ItemEmbeddings
from recsys.model.models import Model

_NOISE = 0.01
"""Noise of a new row without neighbours, as a share of the spread of the known rows: rows that are
equal would tie."""


@dataclass(frozen=True, slots=True, eq=False)
class EarlierModel:
    """The weights of a model whose catalogue had J items, as a source for one of I items."""

    weights: Mapping[str, Tensor]
    """Its weights, by name."""
    tokens: NDArray[np.int32]
    """Shape [I + 1]: the token that each item had there; PAD for an item without a known row."""

    def grown(self, model: Model, histories: Histories) -> dict[str, Tensor]:
        """Return the weights for a model of the grown catalogue.

        All weights are those of the earlier model. In the tables with a row per item a known item
        keeps its row. A new one has zeros where the model reads item features, which are all that
        is known of it; else the mean of its first neighbours; without any, the mean of all known
        rows and a little noise of torch's generator.

        Args:
            model: a new model of the I items, which is not changed.
            histories: where neighbours are looked for, in its item tokens.

        Raises:
            InputError: a weight has another shape in the earlier model.
        """
        tables = item_tables(model)
        grown: dict[str, Tensor] = {}
        neighbours = None
        for name, made in model.state_dict().items():
            found = self.weights.get(name)
            if name not in tables:
                grown[name] = _checked(name, found, made)
                continue
            found = _checked(name, found, made, rows=int(self.tokens.max(initial=0)) + 1)
            rows = found[torch.from_numpy(self.tokens).long()].clone()
            if model.items.features is None:
                if neighbours is None:
                    neighbours = first_neighbours(histories, self.tokens, len(found))
                _fill(rows, found, self.tokens, neighbours)
            else:
                rows[torch.from_numpy(self.tokens == PAD)] = 0
            grown[name] = rows
        return grown


def item_tables(model: Model) -> set[str]:
    """Return the names of the weights with a row per item, [I + 1, ...].

    The table of item embeddings has only that of PAD where items have features alone.
    """
    tables = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, ItemEmbeddings) and module.num_embeddings > 1
    }
    return {name for name, weight in model.named_parameters() if id(weight) in tables}


def first_neighbours(histories: Histories, tokens: NDArray[np.int32], num_known: int) -> csr_array:
    """Count the first known neighbours of each new item, by new and by earlier token.

    Those of an occurrence are the nearest known items before and after it in the same history.

    Args:
        histories: in the item tokens of the grown catalogue.
        tokens: the earlier token of each item [I + 1], PAD for a new one.
        num_known: J + 1.

    Returns:
        Counts [I + 1, J + 1].

    >>> histories = Histories.from_lists([[1, 3, 4, 2], [3, 1]])  # 3 and 4 are new
    >>> first_neighbours(histories, np.array([0, 1, 2, 0, 0]), 3).toarray()[3:].tolist()
    [[0, 2, 1], [0, 1, 1]]
    """
    items, users = histories.items, histories.users
    places = np.arange(len(items))
    known = tokens[items] != PAD
    before = np.maximum.accumulate(np.where(known, places, -1))
    after = np.minimum.accumulate(np.where(known, places, len(items))[::-1])[::-1]
    new: list[NDArray[np.int32]] = []
    neighbours: list[NDArray[np.int32]] = []
    for nearest, exists in ((before, before >= 0), (after, after < len(items))):
        rows = np.flatnonzero(~known & exists)
        rows = rows[users[nearest[rows]] == users[rows]]
        new.append(items[rows])
        neighbours.append(tokens[items[nearest[rows]]])
    pairs = np.concatenate(new), np.concatenate(neighbours)
    return csr_array(
        (np.ones(len(pairs[0]), dtype=np.int64), pairs), shape=(len(tokens), num_known)
    )


def _fill(rows: Tensor, known: Tensor, tokens: NDArray[np.int32], neighbours: csr_array) -> None:
    """Give the new items the mean rows of their neighbours; [I + 1, D], in place."""
    new = np.flatnonzero(tokens == PAD)[1:]  # not PAD itself
    if not len(new):
        return
    old = tokens[tokens != PAD]
    chosen = known[torch.from_numpy(old).long()]
    mean, spread = chosen.mean(dim=0), chosen.std(correction=0)
    counts = neighbours[new]
    totals = counts.sum(axis=1)
    sums = torch.from_numpy(np.asarray(counts @ known.double().numpy()))
    means = (sums / torch.from_numpy(np.maximum(totals, 1))[:, None]).to(known.dtype)
    alone = torch.from_numpy(totals == 0)
    means[alone] = mean + _NOISE * spread * torch.randn(int(alone.sum()), known.shape[1])
    rows[torch.from_numpy(new)] = means


def _checked(name: str, found: Tensor | None, made: Tensor, rows: int | None = None) -> Tensor:
    """Return the weight of the earlier model, if it fits."""
    if found is None:
        raise InputError(f"weight {name!r}: the model to start from has none")
    same = found.shape == made.shape if rows is None else found.shape[1:] == made.shape[1:]
    if not same or (rows is not None and len(found) < rows):
        raise InputError(
            f"weight {name!r} is {tuple(found.shape)} in the model to start from, but "
            f"{tuple(made.shape)} here"
        )
    return found
