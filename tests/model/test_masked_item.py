"""BERT4Rec: which items are masked, what the states depend on, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recsys.config import Experiment, MaskedItemConfig, parse_experiment
from recsys.data.batches import TrainingBatches
from recsys.data.histories import Histories
from recsys.evaluation.metrics import metric_values
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import rank_targets
from recsys.model.build import build_model
from recsys.model.embeddings import positions_from_end
from recsys.model.models import MaskedItemModel, ModelInputs
from recsys.training.loop import train

ITEMS = 20
rows = st.lists(st.lists(st.integers(1, ITEMS), max_size=12), min_size=1, max_size=20)


def make_model(positions: str = "learned") -> MaskedItemModel:
    torch.manual_seed(1)
    config = MaskedItemConfig.model_validate(
        {
            "kind": "masked_item",
            "embedding_dim": 8,
            "feed_forward_dim": 16,
            "max_sequence_length": 12,
            "positions": positions,
        }
    )
    model = build_model(config, ITEMS).double().eval()
    assert isinstance(model, MaskedItemModel)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model


@given(rows, st.floats(0.01, 1), st.integers(1, 12), st.integers(0, 9))
def test_masked_items_and_the_others_make_up_the_sequences(
    lists: list[list[int]], probability: float, width: int, seed: int
) -> None:
    histories = Histories.from_lists(lists)
    found = []
    batches = TrainingBatches(histories, width, 50, seed, mask_probability=probability)
    for batch in batches:
        for items, length, targets in zip(batch.items, batch.lengths, batch.targets, strict=True):
            masked = items[:length] == 0
            assert not items[length:].any()
            assert masked.any()
            assert torch.equal(targets > 0, torch.arange(len(targets)) < masked.sum())
            full = items[:length].clone()
            full[masked] = targets[: int(masked.sum())]
            found.append(full.tolist())
    assert sorted(found) == sorted(row[-width - 1 :] for row in lists if len(row) > 1)


def make_experiment() -> Experiment:
    return parse_experiment(
        {
            "model": {
                "kind": "masked_item",
                "embedding_dim": 32,
                "feed_forward_dim": 32,
                "max_sequence_length": 10,
                "dropout": 0.0,
                "mask_probability": 0.3,
            },
            "training": {"learning_rate": 5e-3, "batch_tokens": 1000, "precision": "float32"},
            "evaluation": {"seen": "allow"},
        }
    )


def recall(*, planted: bool) -> float:
    """The recall of the item after nine that follow a permutation, or are drawn at random."""
    rng = np.random.default_rng(1)
    follower = np.random.default_rng(0).permutation(ITEMS)
    walks = []
    for _ in range(600):
        walk = [int(rng.integers(ITEMS))]
        while len(walk) < 10:
            walk.append(int(follower[walk[-1]] if planted else rng.integers(ITEMS)))
        walks.append([item + 1 for item in walk])
    model, _ = train(
        make_experiment(),
        Catalogue(ITEMS),
        Histories.from_lists(walks[:400]),
        None,
        60,
        lambda *_: None,
    )
    histories = Histories.from_lists([walk[:-1] for walk in walks[400:]])
    targets = np.array([walk[-1] for walk in walks[400:]], dtype=np.int32)
    return float(
        metric_values(
            rank_targets(ModelScorer(model, 10), histories, targets, "allow"), "recall_at_1"
        ).mean()
    )


@pytest.mark.slow
def test_a_planted_rule_is_learned_and_noise_is_not() -> None:
    assert recall(planted=True) > 0.95
    assert recall(planted=False) < 0.12


def test_shown_items_and_the_mask_are_scaled_alike() -> None:
    """√D times the embedding, or the mask's vector, plus the position, goes into the dropout."""
    model = make_model()
    sums: list[torch.Tensor] = []
    model.encoder.dropout.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    items, lengths = torch.tensor([[5, 0, 7], [0, 3, 0]]), torch.tensor([3, 2])
    model.teacher_forced(ModelInputs(items, lengths), torch.tensor([[1], [2]]))
    model(ModelInputs(torch.tensor([[5]]), torch.tensor([1])))
    item, mask = model.items.weight, model.mask
    rows = [[item[5], mask, item[7]], [mask, item[3], item[0]]]
    for found, vectors, long in (
        (sums[0], torch.stack([torch.stack(row) for row in rows]), lengths),
        (sums[1], torch.stack([item[5], mask])[None], torch.tensor([2])),  # one behind the last
    ):
        places = model.encoder.positions(positions_from_end(long, vectors.shape[1]))
        torch.testing.assert_close(found, vectors * 8**0.5 + places)
