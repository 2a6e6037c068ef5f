"""BERT4Rec: what is hidden, what the mask sees, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recsys.config import Experiment, MaskedItemConfig, parse_experiment
from recsys.data.batches import MaskedBatches, TrainingBatches
from recsys.data.histories import Histories
from recsys.evaluation.metrics.ranks import recall_at
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import rank_targets
from recsys.model.build import build_model
from recsys.model.masked_item import MaskedItemModel
from recsys.model.model_inputs import Inputs
from recsys.training.loop import train
from recsys.training.losses import expand_seen

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
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model


@given(rows, st.floats(0.01, 1), st.integers(1, 12), st.integers(0, 9))
def test_hidden_items_and_the_rest_make_the_sequences(
    lists: list[list[int]], probability: float, width: int, seed: int
) -> None:
    histories = Histories.from_lists(lists)
    found = []
    for batch in MaskedBatches(TrainingBatches(histories, width, 50, seed), probability, seed):
        for items, length, targets in zip(batch.items, batch.lengths, batch.targets, strict=True):
            hidden = items[:length] == 0
            assert not items[length:].any()
            assert hidden.any()
            assert torch.equal(targets > 0, torch.arange(len(targets)) < hidden.sum())
            whole = items[:length].clone()
            whole[hidden] = targets[: int(hidden.sum())]
            found.append(whole.tolist())
    assert sorted(found) == sorted(row[-width - 1 :] for row in lists if len(row) > 1)


def test_as_many_items_are_hidden_as_asked_for_and_others_in_every_epoch() -> None:
    histories = Histories.from_lists([[1 + i % ITEMS for i in range(50)]] * 100)

    def hidden(batches: MaskedBatches) -> torch.Tensor:
        return torch.cat([batch.items[:, :50] == 0 for batch in batches])

    one, two = (
        MaskedBatches(TrainingBatches(histories, 50, 10_000, 3), 0.3, seed) for seed in (3, 3)
    )
    first = hidden(one)
    assert first.double().mean() == pytest.approx(0.3, abs=0.02)
    assert torch.equal(first, hidden(two))
    assert not torch.equal(first, hidden(one))


def test_a_state_sees_both_sides_but_not_its_own_item() -> None:
    """Each hidden item's state moves with every shown item, before it and behind it."""
    model = make_model()
    items = torch.tensor([[5, 0, 7, 0, 9]], requires_grad=False)
    lengths, targets = torch.tensor([5]), torch.tensor([[3, 4]])
    (states,), _ = model.teacher_forced(Inputs(items, lengths), targets)
    (other,), _ = model.teacher_forced(Inputs(items, lengths), torch.tensor([[8, 2]]))
    assert torch.equal(states, other)
    for place in (0, 2, 4):
        changed = items.clone()
        changed[0, place] = 11
        (moved,), _ = model.teacher_forced(Inputs(changed, lengths), targets)
        assert bool(((moved - states).abs().amax(dim=-1) > 1e-6).all())


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_scoring_asks_for_the_last_state_alone(positions: str) -> None:
    """Of a history of the greatest length, too, behind which stands what is asked for."""
    model = make_model(positions).eval()
    longest = [5, 3, 7, 1, 2, 4, 6, 8, 9, 10, 11, 12]
    items, lengths = torch.tensor([longest, [6] + 11 * [0]]), torch.tensor([12, 1])
    inputs = Inputs(items, lengths)
    (whole,), (newest,) = model(inputs), model.newest(inputs)
    torch.testing.assert_close(newest, whole, rtol=0, atol=1e-6)


def test_the_states_are_those_of_the_hidden_places_in_order() -> None:
    model = make_model()
    items = torch.tensor([[5, 0, 7, 0], [0, 6, 0, 0]])
    lengths, targets = torch.tensor([4, 2]), torch.tensor([[1, 2], [3, 0]])
    (states,), _ = model.teacher_forced(Inputs(items, lengths), targets)
    whole = model.encoder(model._embed(items, lengths), lengths)
    assert torch.equal(states[0], whole[0, [1, 3]])
    assert torch.equal(states[1, 0], whole[1, 0])


def test_what_is_shown_is_had_before_every_target() -> None:
    _, had = make_model().teacher_forced(
        Inputs(torch.tensor([[5, 0, 7, 0]]), torch.tensor([4])), torch.tensor([[1, 2]])
    )
    shown = [set(row) - {0} for row in expand_seen(had, 2)[0].tolist()]
    assert shown == [{5, 7}, {5, 7}]


def test_scoring_asks_for_the_item_behind_the_last() -> None:
    """It is the state that training knows of a sequence whose last item alone is hidden."""
    model = make_model()
    items, lengths = torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1])
    candidates = model.head.represent_candidates(model.items.weight)
    scores = model.head.newest(model(Inputs(items, lengths)), candidates, lengths)
    hidden = torch.tensor([[5, 6, 7, 0], [8, 0, 0, 0]])
    (states,), _ = model.teacher_forced(Inputs(hidden, lengths + 1), torch.tensor([[1], [1]]))
    torch.testing.assert_close(scores, states[:, 0] @ model.items.weight.T)


@given(st.lists(st.integers(1, ITEMS), min_size=1, max_size=10), st.integers(1, 2))
def test_padding_and_neighbours_change_nothing(row: list[int], extra: int) -> None:
    model = make_model()
    lengths = torch.tensor([len(row)])
    alone = model(Inputs(torch.tensor([row]), lengths))[0][0, -1]
    batch = torch.zeros(2, len(row) + extra, dtype=torch.int64)
    batch[0, : len(row)] = torch.tensor(row)
    batch[1] = 3
    together = model(Inputs(batch, torch.tensor([len(row), len(row) + extra])))[0][0, 0]
    torch.testing.assert_close(together, alone)


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
    """Of the item after nine that walk along a permutation, or are drawn at random."""
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
    asked = Histories.from_lists([walk[:-1] for walk in walks[400:]])
    targets = np.array([walk[-1] for walk in walks[400:]], dtype=np.int32)
    return float(recall_at(rank_targets(ModelScorer(model, 10), asked, targets, "allow"), 1).mean())


def test_a_planted_rule_is_learnt_and_noise_is_not() -> None:
    assert recall(planted=True) > 0.95
    assert recall(planted=False) < 0.12
