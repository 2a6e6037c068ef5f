"""The sequence-to-sequence model: what was seen before a target, and how it starts."""

from __future__ import annotations

import math

import pytest
import torch

from recsys.config.model import SequenceToSequenceConfig
from recsys.model.build import build_model
from recsys.model.models import ModelInputs
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.training.losses import seen_before


def make_model(**sizes: int) -> SequenceToSequence:
    config = SequenceToSequenceConfig.model_validate(
        {
            "kind": "sequence_to_sequence",
            "embedding_dim": 8,
            "feed_forward_dim": 16,
            "max_sequence_length": 12,
            "max_generated": 8,
            **sizes,
        }
    )
    torch.manual_seed(0)
    model = build_model(config, 20)
    assert isinstance(model, SequenceToSequence)
    return model


def test_the_items_seen_before_each_target() -> None:
    model = make_model()
    items, lengths = torch.tensor([[5, 3, 0], [6, 2, 4]]), torch.tensor([2, 3])
    _, seen = model.teacher_forced(
        ModelInputs(items, lengths), torch.tensor([[7, 8, 9], [1, 7, 0]])
    )
    before = seen_before(seen, torch.arange(6).view(2, 3), 3)
    rows = [[set(row) - {0} for row in sequence] for sequence in before.tolist()]
    assert rows == [[{5, 3}, {5, 3, 7}, {5, 3, 7, 8}], [{6, 2, 4}, {6, 2, 4, 1}, {6, 2, 4, 1, 7}]]


def test_weights_are_initialised_by_xaviers_rule() -> None:
    """Uniform in ±√(6 / (inputs + outputs)), for every matrix of the stacks."""
    model = make_model(embedding_dim=48, feed_forward_dim=96)
    matrices = {
        name: weight
        for name, weight in model.named_parameters()
        if ".blocks." in name and weight.dim() == 2
    }
    assert len(matrices) == 2 * 4 + 2 * 6  # two blocks each; attention: two, feed-forward: two
    for name, weight in matrices.items():
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.98 * bound < weight.abs().max() <= bound, name
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
        assert abs(weight.mean().item()) < 0.05 * bound, name
