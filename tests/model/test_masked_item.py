"""BERT4Rec: which items are masked, what the states depend on, and that it learns."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys.config.model import MaskedItemConfig
from recsys.data.batches import TrainingBatches
from recsys.data.histories import Histories
from recsys.model.build import build_model
from recsys.model.embeddings import positions_from_end
from recsys.model.models import MaskedItemModel, ModelInputs
from tests.helpers.random_models import drawn

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
    return drawn(model, 0.3)


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


def test_shown_items_and_the_mask_are_scaled_alike() -> None:
    """√D times the embedding, or the mask's vector, plus the position, goes into the dropout."""
    model = make_model()
    sums: list[torch.Tensor] = []
    model.encoder.dropout.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    items, lengths = torch.tensor([[5, 0, 7], [0, 3, 0]]), torch.tensor([3, 2])
    model.teacher_forced(ModelInputs(items, lengths), torch.tensor([[1], [2]]))
    model(ModelInputs(torch.tensor([[5]]), torch.tensor([1])))
    item, mask = model.items.weight, model.mask
    assert model.encoder.positions is not None
    rows = [[item[5], mask, item[7]], [mask, item[3], item[0]]]
    for found, vectors, long in (
        (sums[0], torch.stack([torch.stack(row) for row in rows]), lengths),
        (sums[1], torch.stack([item[5], mask])[None], torch.tensor([2])),  # one behind the last
    ):
        places = model.encoder.positions(positions_from_end(long, vectors.shape[1]))
        torch.testing.assert_close(found, vectors * 8**0.5 + places)
