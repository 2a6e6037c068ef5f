"""The sequence-to-sequence model: what its states depend on, what is tied, how it starts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys.config import SequenceToSequenceConfig
from recsys.model.build import build_model
from recsys.model.embeddings import positions_from_end
from recsys.model.models import ModelInputs
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.training.losses import SeenItems

ITEMS = 20

seeds = st.integers(0, 2**16)
variants = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["pre", "post"]),
        "activation": st.sampled_from(["gelu", "relu"]),
        "positions": st.sampled_from(["learned", "sinusoidal"]),
        "num_encoder_blocks": st.integers(0, 2),
        "num_decoder_blocks": st.integers(1, 2),
    }
)


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-10)


def make_config(**variant: object) -> SequenceToSequenceConfig:
    return SequenceToSequenceConfig.model_validate(
        {
            "kind": "sequence_to_sequence",
            "embedding_dim": 8,
            "feed_forward_dim": 16,
            "max_sequence_length": 12,
            "max_generated": 8,
            **variant,
        }
    )


def fresh_model(**variant: object) -> SequenceToSequence:
    model = build_model(make_config(**variant), ITEMS)
    assert isinstance(model, SequenceToSequence)
    return model


def make_model(seed: int, **variant: object) -> SequenceToSequence:
    """A model with large random weights, so that every connection shows; not larger, since a
    saturated softmax gives some tokens e^-20 of the attention.
    """
    torch.manual_seed(seed)
    model = fresh_model(**variant).double().eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model


def draw(rows: int, width: int) -> Tensor:
    return torch.randint(1, ITEMS + 1, (rows, width))


def changed(items: Tensor) -> Tensor:
    """The items with every token changed."""
    return items % ITEMS + 1


@settings(max_examples=25, deadline=None)
@given(seeds, variants, st.integers(2, 8), st.data())
def test_a_state_depends_on_all_tokens_before_it_and_on_none_after(
    seed: int, variant: dict[str, object], generated: int, data: st.DataObject
) -> None:
    model = make_model(seed, **variant)
    items, lengths, targets = draw(2, 5), torch.tensor([5, 3]), draw(2, generated)
    position = data.draw(st.integers(0, generated - 1))
    others = targets.clone()
    others[:, position] = changed(targets[:, position])
    (before, *_), _ = model.teacher_forced(ModelInputs(items, lengths), targets)
    (after, *_), _ = model.teacher_forced(ModelInputs(items, lengths), others)
    assert before.shape == (2, generated, 8)
    assert torch.allclose(before[:, : position + 1], after[:, : position + 1], rtol=0, atol=1e-12)
    differs = (before - after).abs().amax(-1) > 1e-9
    assert differs[:, position + 1 :].all()


def test_the_items_seen_before_each_target() -> None:
    model = make_model(0)
    items, lengths = torch.tensor([[5, 3, 0], [6, 2, 4]]), torch.tensor([2, 3])
    _, seen = model.teacher_forced(
        ModelInputs(items, lengths), torch.tensor([[7, 8, 9], [1, 7, 0]])
    )
    before = SeenItems.up_to(seen, 3).before(slice(None))
    rows = [[set(row) - {0} for row in sequence] for sequence in before.tolist()]
    assert rows == [[{5, 3}, {5, 3, 7}, {5, 3, 7, 8}], [{6, 2, 4}, {6, 2, 4, 1}, {6, 2, 4, 1, 7}]]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_items_are_scaled_and_dropout_comes_after_the_sum(positions: str) -> None:
    """√D times the embedding, plus the position, goes into the dropout, in both stacks."""
    model = make_model(0, positions=positions)
    sums: list[Tensor] = []
    for stack in (model.encoder, model.decoder):
        stack.dropout.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    items, lengths, targets = torch.tensor([[4, 9, 2], [7, 1, 0]]), torch.tensor([3, 2]), draw(2, 3)
    model.teacher_forced(ModelInputs(items, lengths), targets)
    scaled = model.items.weight * math.sqrt(8)
    begin = (model.begin * math.sqrt(8)).expand(2, 1, 8)
    read = scaled[items] + model.encoder.positions(positions_from_end(lengths, 3))
    generated = torch.cat([begin, scaled[targets[:, :2]]], dim=1)
    assert close(sums[0], read)
    assert close(sums[1], generated + model.decoder.positions(torch.arange(3)))


def test_weights_are_initialised_by_xaviers_rule() -> None:
    """Uniform in ±√(6 / (inputs + outputs)), for every matrix of the stacks."""
    torch.manual_seed(0)
    model = fresh_model(embedding_dim=48, feed_forward_dim=96)
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
