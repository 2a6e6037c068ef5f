"""Models of every kind as they are built; the next-item model and the factorisation machine."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config import (
    DotProduct,
    FactorisationMachineConfig,
    HSTUConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TargetAttention,
    TransformerConfig,
)
from recsys.model.build import build_model
from recsys.model.embeddings import LearnedPositions, SinusoidalPositions, positions_from_end
from recsys.model.encoder import Dropout, Encoder, EncoderBlock, Residual
from recsys.model.models import FactorisationMachine, Model, ModelInputs, NextItemModel
from recsys.model.sequence_to_sequence import DecoderBlock, SequenceToSequence
from recsys.model.target_attention import TargetAttentionHead
from recsys.training.losses.full_catalogue import chunked_cross_entropy

Norm = Literal["pre", "post"]
HEADS: list[DotProduct | TargetAttention] = [
    DotProduct(),
    TargetAttention(num_heads=2, head_dim=4),
    TargetAttention(num_heads=1, head_dim=4, kv_source="states"),
]


def make_model(head: DotProduct | TargetAttention, norm: Norm = "pre") -> NextItemModel:
    torch.manual_seed(1)
    config = NextItemConfig(
        embedding_dim=8, feed_forward_dim=16, max_sequence_length=12, head=head, norm=norm
    )
    model = build_model(config, num_items=20).double().eval()
    for weight in model.parameters():  # past the zero initialisation of the head
        nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model


def last_scores(model: NextItemModel, items: Tensor, lengths: Tensor) -> Tensor:
    candidates = model.head.represent_candidates(model.items.weight)
    last = model.head.select_last(model(ModelInputs(items, lengths)), lengths)
    return model.head.score_last(last, candidates)


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=15, deadline=None)
@given(length=st.integers(1, 6), extra=st.integers(1, 6), seed=st.integers(0, 999))
def test_padding_and_other_rows_change_nothing(
    head: DotProduct | TargetAttention, length: int, extra: int, seed: int
) -> None:
    model = make_model(head)
    torch.manual_seed(seed)
    items = torch.randint(1, 21, (1, length))
    single = last_scores(model, items, torch.tensor([length]))
    padded = F.pad(items, (0, extra))
    other = torch.randint(1, 21, (1, length + extra))
    both, lengths = torch.cat([other, padded]), torch.tensor([length + extra, length])
    together = last_scores(model, both, lengths)
    assert torch.allclose(together[1], single[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("head", HEADS)
def test_the_future_changes_nothing(head: DotProduct | TargetAttention, norm: Norm) -> None:
    model = make_model(head, norm)
    items = torch.randint(1, 21, (3, 9))
    lengths = torch.full((3,), 9)
    candidates = model.head.represent_candidates(model.items.weight)
    before = model.head.logits(model(ModelInputs(items, lengths)), candidates)
    changed = items.clone()
    changed[:, 6:] = torch.randint(1, 21, (3, 3))
    after = model.head.logits(model(ModelInputs(changed, lengths)), candidates)
    assert torch.allclose(before[:, :6], after[:, :6], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_dropout_keeps_its_share_and_its_mean() -> None:
    torch.manual_seed(0)
    dropout = Dropout(0.25)
    x = torch.ones(400, 501, requires_grad=True)
    y = dropout(x)
    assert (y == 0).double().mean().item() == pytest.approx(0.25, abs=0.005)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
    assert dropout.eval()(x) is x
    with pytest.raises(ValueError, match="dropout"):
        Dropout(1.0)


KINDS: list[tuple[ModelConfig, type[nn.Module]]] = [
    *((NextItemConfig(head=head), NextItemModel) for head in HEADS),
    (NextItemConfig(num_blocks=0, positions="sinusoidal"), NextItemModel),
    (NextItemConfig(norm="gated", activation="swiglu", positions="rotary"), NextItemModel),
    (HSTUConfig(kind="hstu"), NextItemModel),
    (HSTUConfig(kind="hstu", head=TargetAttention()), NextItemModel),
    (SequenceToSequenceConfig(kind="sequence_to_sequence"), SequenceToSequence),
    (
        SequenceToSequenceConfig(
            kind="sequence_to_sequence",
            norm="post",
            activation="relu",
            positions="sinusoidal",
            num_encoder_blocks=0,
        ),
        SequenceToSequence,
    ),
    (FactorisationMachineConfig(kind="factorisation_machine"), FactorisationMachine),
]


@pytest.mark.parametrize(("config", "kind"), KINDS)
def test_a_new_model_favours_no_item_and_trains_all_its_weights(
    config: ModelConfig, kind: type[Model]
) -> None:
    torch.manual_seed(0)
    model = build_model(config, num_items=100)
    assert type(model) is kind
    assert model.num_items == 100
    assert not model.items.weight[0].any()
    items, targets = torch.randint(1, 101, (16, 7)), torch.randint(1, 101, (16, 7))
    inputs = ModelInputs(items, torch.full((16,), 7))
    assert model.encode_last(inputs)[0].shape == (16, model.items.embedding_dim)
    history, _ = model.teacher_forced(inputs, targets)
    candidates = model.head.represent_candidates(model.items.weight)
    loss = chunked_cross_entropy(model.head.logits, history, candidates, targets, None)
    assert loss.item() == pytest.approx(math.log(100), abs=0.2)
    loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


@pytest.mark.parametrize(("config", "kind"), KINDS)
def test_the_seed_determines_the_initial_weights(
    config: ModelConfig, kind: type[nn.Module]
) -> None:
    weights = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        weights.append(build_model(config, num_items=9).items.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    "config",
    [NextItemConfig(num_blocks=3), SequenceToSequenceConfig(kind="sequence_to_sequence")],
)
@pytest.mark.parametrize("old", [False, True])
def test_the_parts_are_those_of_the_config(config: TransformerConfig, old: bool) -> None:
    """The default parts, and those published in 2017."""
    changes = {"norm": "post", "activation": "relu", "positions": "sinusoidal"}
    config = config.model_copy(update=changes if old else {})
    assert isinstance(config, NextItemConfig | SequenceToSequenceConfig)
    model = build_model(config, num_items=9)
    parts = [type(part) for part in model.modules()]
    chosen, others = [nn.ReLU, SinusoidalPositions], [nn.GELU, LearnedPositions]
    if not old:
        chosen, others = others, chosen
    assert set(chosen) <= set(parts)
    assert not set(others) & set(parts)
    assert {part.is_post for part in model.modules() if isinstance(part, Residual)} == {old}
    counts = parts.count(EncoderBlock), parts.count(DecoderBlock)
    assert counts == ((3, 0) if isinstance(config, NextItemConfig) else (2, 2))
    encoder, *_ = (part for part in model.modules() if isinstance(part, Encoder))
    assert encoder.causal == isinstance(config, NextItemConfig)


def make_factorisation_machine(seed: int) -> FactorisationMachine:
    torch.manual_seed(seed)
    model = FactorisationMachine(num_items=8, embedding_dim=3, dropout=0.0).double()
    for weight in model.parameters():
        nn.init.normal_(weight)
        with torch.no_grad():
            weight[0] = 0
    return model


def degree_two(features: list[tuple[float, Tensor, Tensor]]) -> float:
    """Σ w_i x_i + Σ_{i<j} (v_i · v_j) x_i x_j over features (x, w, v): equation 1 of Rendle."""
    total = 0.0
    for i, (x, weight, vector) in enumerate(features):
        total += x * weight.item()
        for other, _, other_vector in features[:i]:
            total += x * other * (vector @ other_vector).item()
    return total


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_the_factorisation_machine_by_its_formula(seed: int, history: list[int]) -> None:
    """Features: candidate, last item, items of the bag; terms shared by all candidates drop out."""
    model = make_factorisation_machine(seed)
    represented = model(ModelInputs(torch.tensor([history]), torch.tensor([len(history)])))
    found = model.head.logits(represented, model.head.represent_candidates(model.items.weight))
    with torch.no_grad():
        own = torch.randn(2, 9, dtype=torch.float64)  # weights of the last item and of the bag's
        for t in range(len(history)):
            shared = [(1.0, own[0, history[t]], model.last.weight[history[t]])]
            for item, count in Counter(history[: t + 1]).items():
                shared.append((count / math.sqrt(t + 1), own[1, item], model.bag.weight[item]))
            exact = [
                degree_two([(1.0, row[-1], row[:-1]), *shared]) for row in model.items.weight[1:]
            ]
            differences = [score - exact[0] for score in exact]
            ours = (found[0, t, 1:] - found[0, t, 1]).tolist()
            assert ours == pytest.approx(differences, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 6), st.integers(1, 4))
def test_the_factorisation_machine_sees_no_future_and_no_padding(
    seed: int, length: int, more: int
) -> None:
    model = make_factorisation_machine(seed)
    items = torch.randint(1, 9, (2, length + more))
    items[1, :length], items[1, length:] = items[0, :length], 0
    lengths = torch.tensor([length + more, length])
    states, *_ = model(ModelInputs(items, lengths))
    single, *_ = model(ModelInputs(items[:1, :length], lengths[1:]))
    for row in states[:, :length]:
        assert torch.allclose(row, single[0], rtol=0, atol=1e-12)
    assert (states[0, length:] != states[0, length - 1]).any()


@pytest.mark.parametrize("kind", ["next_item", "hstu"])
def test_inputs_are_scaled_and_dropout_comes_after_the_sum(kind: str) -> None:
    """The dropout reads √D times the embedding plus the position; the key and value source is √D
    times the embedding, candidates are not scaled.
    """
    torch.manual_seed(0)
    shape = {"embedding_dim": 9, "max_sequence_length": 4, "num_heads": 3}
    head = {"kind": "target_attention", "num_heads": 1, "head_dim": 4}
    config: NextItemConfig | HSTUConfig
    if kind == "hstu":
        config = HSTUConfig.model_validate({"kind": "hstu", "head": head, **shape})
    else:
        config = NextItemConfig.model_validate({"head": head, "feed_forward_dim": 8, **shape})
    model = build_model(config, num_items=20).double().eval()
    sums: list[Tensor] = []
    sources: list[Tensor] = []
    model.encoder.dropout.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    assert isinstance(model.head, TargetAttentionHead)
    model.head.kv_norm.register_forward_pre_hook(lambda _, inputs: sources.append(inputs[0]))
    items, lengths = torch.tensor([[4, 9, 2], [7, 1, 0]]), torch.tensor([3, 2])
    side = model(ModelInputs(items, lengths))
    scaled = 3 * model.items.weight[items]
    positions = model.encoder.positions(positions_from_end(lengths, 3))
    assert torch.allclose(sums[0], scaled + positions, rtol=0, atol=1e-12)
    assert torch.allclose(sources[0], scaled, rtol=0, atol=1e-12)
    scores = model.head.logits(side, model.head.represent_candidates(model.items.table()))
    assert torch.allclose(scores, side[0] @ model.items.weight.T, rtol=0, atol=1e-9)
