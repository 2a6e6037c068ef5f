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
        num_known = int(self.tokens.max(initial=PAD)) + 1
        neighbours = None
        if model.items.features is None and tables:
            neighbours = first_neighbours(histories, self.tokens, num_known)
        for name, new in model.state_dict().items():
            known = self.weights.get(name)
            if known is None:
                raise InputError(f"weight {name!r}: the model to start from has none")
            fits = known.shape == new.shape
            if name in tables:
                fits = known.shape[1:] == new.shape[1:] and len(known) >= num_known
            if not fits:
                raise InputError(
                    f"weight {name!r} is {tuple(known.shape)} in the model to start from, but "
                    f"{tuple(new.shape)} here"
                )
            grown[name] = known if name not in tables else self._grown_table(known, neighbours)
        return grown

    def _grown_table(self, known: Tensor, neighbours: csr_array | None) -> Tensor:
        """Return the rows of all items [I + 1, D]; zeros for new ones if neighbours is None."""
        rows = known[torch.from_numpy(self.tokens).long()].clone()
        new = np.flatnonzero(self.tokens == PAD)
        if neighbours is None:
            rows[torch.from_numpy(new)] = 0
            return rows
        if len(new := new[1:]):  # not PAD itself
            chosen = known[torch.from_numpy(self.tokens[self.tokens != PAD]).long()]
            counts = neighbours[new]
            totals = counts.sum(axis=1)
            sums = counts @ known[: counts.shape[1]].double().numpy()
            means = torch.from_numpy(sums / np.maximum(totals, 1)[:, None]).to(known.dtype)
            alone = torch.from_numpy(totals == 0)
            noise = torch.randn(int(alone.sum()), known.shape[1])
            means[alone] = chosen.mean(dim=0) + _NOISE * chosen.std(dim=0, correction=0) * noise
            rows[torch.from_numpy(new)] = means
        return rows


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
