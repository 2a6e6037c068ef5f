"""BERT4Rec: which items are masked, what the states depend on, and that it learns."""

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
from recsys.evaluation.metrics import metric_values
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import rank_targets
from recsys.model.build import build_model
from recsys.model.embeddings import positions_from_end
from recsys.model.models import MaskedItemModel, ModelInputs
from recsys.training.loop import train
from recsys.training.losses.full_catalogue import SeenItems

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
    for batch in MaskedBatches(TrainingBatches(histories, width, 50, seed), probability, seed):
        for items, length, targets in zip(batch.items, batch.lengths, batch.targets, strict=True):
            masked = items[:length] == 0
            assert not items[length:].any()
            assert masked.any()
            assert torch.equal(targets > 0, torch.arange(len(targets)) < masked.sum())
            full = items[:length].clone()
            full[masked] = targets[: int(masked.sum())]
            found.append(full.tolist())
    assert sorted(found) == sorted(row[-width - 1 :] for row in lists if len(row) > 1)


def test_the_configured_share_is_masked_and_other_items_in_every_epoch() -> None:
    histories = Histories.from_lists([[1 + i % ITEMS for i in range(50)]] * 100)

    def masked(batches: MaskedBatches) -> torch.Tensor:
        return torch.cat([batch.items[:, :50] == 0 for batch in batches])

    one, two = (
        MaskedBatches(TrainingBatches(histories, 50, 10_000, 3), 0.3, seed) for seed in (3, 3)
    )
    first = masked(one)
    assert first.double().mean() == pytest.approx(0.3, abs=0.02)
    assert torch.equal(first, masked(two))
    assert not torch.equal(first, masked(one))


def test_a_state_depends_on_items_before_and_after_but_not_on_its_own() -> None:
    """Each masked item's state changes with every visible item, before it and after it."""
    model = make_model()
    items = torch.tensor([[5, 0, 7, 0, 9]], requires_grad=False)
    lengths, targets = torch.tensor([5]), torch.tensor([[3, 4]])
    (states, *_), _ = model.teacher_forced(ModelInputs(items, lengths), targets)
    (other, *_), _ = model.teacher_forced(ModelInputs(items, lengths), torch.tensor([[8, 2]]))
    assert torch.equal(states, other)
    for position in (0, 2, 4):
        changed = items.clone()
        changed[0, position] = 11
        (moved, *_), _ = model.teacher_forced(ModelInputs(changed, lengths), targets)
        assert bool(((moved - states).abs().amax(dim=-1) > 1e-6).all())


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_encode_last_is_the_state_of_the_full_pass(positions: str) -> None:
    """Even for a history of the greatest length, after which the mask token is appended."""
    model = make_model(positions).eval()
    longest = [5, 3, 7, 1, 2, 4, 6, 8, 9, 10, 11, 12]
    items, lengths = torch.tensor([longest, [6] + 11 * [0]]), torch.tensor([12, 1])
    inputs = ModelInputs(items, lengths)
    (full, *_), (last, *_) = model(inputs), model.encode_last(inputs)
    assert full.shape == (2, 1, 8)
    torch.testing.assert_close(last, full[:, 0], rtol=0, atol=1e-6)


def test_the_states_are_those_of_the_masked_positions_in_order() -> None:
    model = make_model()
    items = torch.tensor([[5, 0, 7, 0], [0, 6, 0, 0]])
    lengths, targets = torch.tensor([4, 2]), torch.tensor([[1, 2], [3, 0]])
    (states, *_), _ = model.teacher_forced(ModelInputs(items, lengths), targets)
    full = model.encoder(model._embedded(items, lengths), lengths)
    assert torch.equal(states[0], full[0, [1, 3]])
    assert torch.equal(states[1, 0], full[1, 0])


def test_visible_items_count_as_seen_before_every_target() -> None:
    _, seen = make_model().teacher_forced(
        ModelInputs(torch.tensor([[5, 0, 7, 0]]), torch.tensor([4])), torch.tensor([[1, 2]])
    )
    visible = [set(row) - {0} for row in SeenItems.up_to(seen, 2).before(slice(None))[0].tolist()]
    assert visible == [{5, 7}, {5, 7}]


def test_scoring_predicts_the_item_after_the_last() -> None:
    """The state equals that of a training sequence of which only the last item is masked."""
    model = make_model()
    items, lengths = torch.tensor([[5, 6, 7], [8, 0, 0]]), torch.tensor([3, 1])
    candidates = model.head.represent_candidates(model.items.weight)
    scores = model.head.score_last(model.encode_last(ModelInputs(items, lengths)), candidates)
    masked = torch.tensor([[5, 6, 7, 0], [8, 0, 0, 0]])
    (states, *_), _ = model.teacher_forced(
        ModelInputs(masked, lengths + 1), torch.tensor([[1], [1]])
    )
    torch.testing.assert_close(scores, states[:, 0] @ model.items.weight.T)


@given(st.lists(st.integers(1, ITEMS), min_size=1, max_size=10), st.integers(1, 2))
def test_padding_and_other_rows_change_nothing(row: list[int], extra: int) -> None:
    model = make_model()
    lengths = torch.tensor([len(row)])
    single = model(ModelInputs(torch.tensor([row]), lengths))[0][0, -1]
    batch = torch.zeros(2, len(row) + extra, dtype=torch.int64)
    batch[0, : len(row)] = torch.tensor(row)
    batch[1] = 3
    together = model(ModelInputs(batch, torch.tensor([len(row), len(row) + extra])))[0][0, 0]
    torch.testing.assert_close(together, single)


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
