"""Histories as the inputs of a model."""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.data.batches import FeatureTensors
from recsys.data.histories import Histories
from recsys.model.model_inputs import ModelInputs
from recsys.model.protocols import HistoryRepresentation, Model


def model_inputs(model: Model, histories: Histories) -> ModelInputs:
    """The inputs of a model for a batch of histories, on its device."""
    device = model.items.weight.device
    items = torch.from_numpy(histories.padded()).to(device)
    lengths = torch.from_numpy(histories.lengths).to(device)
    times, features = histories.padded_times(), FeatureTensors.from_histories(histories)
    return ModelInputs(
        items,
        lengths,
        None if times is None else torch.from_numpy(times).to(device),
        None if features is None else features.to(device),
    )


def read_histories(model: Model, histories: Histories) -> tuple[HistoryRepresentation, Tensor]:
    """Represent a batch of histories with everything that the model reads; and its lengths [B].

    Raises:
        ValueError: the model reads times or features that the histories do not have.
    """
    inputs = model_inputs(model, histories)
    return model(inputs), inputs.lengths
