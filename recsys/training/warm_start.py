"""A warm start: a training that begins with the weights of a trained model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batches import Batches, PlainBatches, ReplayBatches, histories_after
from recsys.data.histories import PAD, Histories
from recsys.inference.grown_items import EarlierModel
from recsys.model.models import Model

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    """The model that a training starts from, and the mixture of histories that it reads."""

    weights: Mapping[str, Tensor]
    """The weights of the model, by name."""
    tokens: NDArray[np.int32]
    """Shape [I + 1]: the token that each item of the catalogue has in that model; PAD if none."""
    untrained: NDArray[np.bool_]
    """Shape [I + 1]: whether the model has the item, but was not trained on an interaction with it.
    What its row learned is that nobody wants the item."""
    until: int | None
    """The time of the newest interaction that the model was trained on. If None, every history is
    read in each epoch."""
    replay: float
    """The share of the histories of an epoch that have no later interaction."""
    may_win: bool
    """Whether the start may be the best epoch: not if it was trained on validation targets, which
    flatters it."""

    def initialise(self, model: Model, histories: Histories) -> None:
        """Give a new model the weights; new items get theirs from neighbours in the histories.

        An item that now has its first interactions is new too.

        Raises:
            InputError: a weight has another shape.
        """
        seen = np.bincount(histories.items, minlength=len(self.tokens)) > 0
        tokens = np.where(self.untrained & seen, np.int32(PAD), self.tokens)
        model.load_state_dict(EarlierModel(self.weights, tokens).grown(model, histories))

    def has_new(self, histories: Histories) -> bool:
        """Return whether the histories have an interaction that the model was not trained on."""
        return bool(histories_after(histories, self.until).any())

    def mixed(
        self,
        build: Callable[[Histories], PlainBatches],
        histories: Histories,
        seed: int,
        epochs_per_pass: int,
    ) -> Batches:
        """Return the batches of the mixture; of all histories if none or all of them are new."""
        is_new = histories_after(histories, self.until)
        count = int(is_new.sum())
        if count in (0, len(histories)):
            return build(histories)
        batches = ReplayBatches(build, histories, is_new, self.replay, seed, epochs_per_pass)
        logger.info(
            "%d of %d histories have new interactions: an epoch reads them and %d others",
            *(count, len(histories), batches.replayed),
        )
        return batches
