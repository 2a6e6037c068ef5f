"""What every kind of model keeps: no padding, no other row and no future reaches a score."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.config.model import HSTUConfig, NextItemConfig, TransformerConfig
from recsys.model.attention import last_states
from recsys.model.build import build_model
from recsys.model.embeddings import positions_from_end
from recsys.model.heads import TargetAttentionHead
from recsys.model.models import (
    FactorisationMachine,
    MaskedItemModel,
    Model,
    ModelInputs,
    NextItemModel,
)
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.training.losses import chunked_cross_entropy

ITEMS, LONGEST = 20, 12
SIZES = {"embedding_dim": 8, "feed_forward_dim": 12, "max_sequence_length": LONGEST}
DOT = {"head": {"kind": "dot_product"}}
ATTENTION: dict[str, Any] = {"kind": "target_attention", "num_heads": 2, "head_dim": 4}
STATES = {**ATTENTION, "pooling": "sum"}
ESASREC: dict[str, Any] = {"norm": "gated", "activation": "swiglu", "positions": "rotary"}
FACTORISATION = {"kind": "factorisation_machine", "embedding_dim": 8}
CHOICES = [
    {name: choice}
    for name in ("norm", "activation", "positions")
    for choice in get_args(TransformerConfig.model_fields[name].annotation)
]
CAUSAL: list[dict[str, Any]] = [
    *({**DOT, **SIZES, **choice} for choice in CHOICES),
    {**DOT, **SIZES, **ESASREC},
    {**DOT, **SIZES, "norm": "post", "filter": True},
    {**DOT, **SIZES, **ESASREC, "filter": True},
    {**DOT, **SIZES, "num_blocks": 0},
    {**SIZES, "head": ATTENTION},
    {**SIZES, "head": STATES},
    *(
        {"kind": "hstu", "embedding_dim": 8, "times": times}
        for times in ("none", "past", "request")
    ),
    {"kind": "hstu", "embedding_dim": 8, "head": ATTENTION},
    FACTORISATION,
]
MASKED = {"kind": "masked_item", **SIZES}
SEQUENCES = {"kind": "sequence_to_sequence", **SIZES}
MEMBERS: list[dict[str, Any]] = [{**SIZES, "head": ATTENTION}, {**SIZES, "head": STATES}, MASKED]
ALL: list[dict[str, Any]] = [
    *CAUSAL,
    MASKED,
    {**MASKED, "positions": "rotary"},
    SEQUENCES,
    {**SEQUENCES, "norm": "post", "activation": "relu", "positions": "sinusoidal"},
    {**SEQUENCES, "num_encoder_blocks": 0},
]
AVERAGED = {"kind": "averaged", "members": [{"model": member} for member in MEMBERS]}


def name_of(tree: dict[str, Any]) -> str:
    return " ".join(str(value) for key, value in tree.items() if key not in SIZES)[:60]


def experiment_of(tree: dict[str, Any]) -> Experiment:
    return parse_experiment({"model": tree, "evaluation": {"request_time": "known"}})


@cache
def make(name: str) -> Model:
    """A model in float64, with weights so large that no effect is lost in rounding."""
    tree = next(tree for tree in (*ALL, AVERAGED) if name_of(tree) == name)
    torch.manual_seed(1)
    model = build_model(experiment_of(tree).model, ITEMS).double().eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.35)
        weight.data[0] *= weight.shape[0] != ITEMS + 1  # PAD
    return model


def draw(rows: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    times = torch.randint(0, 5_000, (rows, length + 1)).cumsum(1)
    return torch.randint(1, ITEMS + 1, (rows, length)), times


def last_scores(model: Model, items: Tensor, lengths: Tensor, times: Tensor) -> Tensor:
    last = model.encode_last(ModelInputs(items, lengths, times))
    return model.head.score_last(last, model.head.represent_candidates(model.items.table()))


def all_scores(model: Model, items: Tensor, lengths: Tensor, times: Tensor) -> Tensor:
    history = model(ModelInputs(items, lengths, times))
    return model.head.logits(history, model.head.represent_candidates(model.items.table()))


@pytest.mark.parametrize("tree", [*ALL, AVERAGED], ids=name_of)
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 999))
def test_padding_and_other_rows_change_no_score(
    tree: dict[str, Any], length: int, extra: int, seed: int
) -> None:
    model = make(name_of(tree))
    items, times = draw(2, length + extra, seed)
    lengths = torch.tensor([length + extra, length])
    items[1, length:] = 0
    together = last_scores(model, items, lengths, times)
    alone = last_scores(model, items[1:, :length], lengths[1:], times[1:, : length + 1])
    torch.testing.assert_close(together[1], alone[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("tree", CAUSAL, ids=name_of)
@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(2, LONGEST), min_size=1, max_size=4), st.integers(0, 999), st.data())
def test_last_scores_are_those_of_the_full_pass_and_no_future_reaches_earlier_ones(
    tree: dict[str, Any], lengths: list[int], seed: int, data: st.DataObject
) -> None:
    """Neither later items nor later times: scoring at t reads the times up to there."""
    model, length = make(name_of(tree)), max(lengths)
    items, times = draw(len(lengths), length, seed)
    before = all_scores(model, items, torch.tensor(lengths), times)
    last = last_scores(model, items, torch.tensor(lengths), times)
    torch.testing.assert_close(last, last_states(before, torch.tensor(lengths)), rtol=0, atol=1e-9)

    now = data.draw(st.integers(0, length - 2))
    full = torch.full((len(lengths),), length)
    before = all_scores(model, items, full, times)
    later_items, later_times = items.clone(), times.clone()
    later_items[:, now + 1 :] = later_items[:, now + 1 :] % ITEMS + 1
    later_times[:, now + 1 + (model.times == "request") :] += 1_000_000
    after = all_scores(model, later_items, full, later_times)
    torch.testing.assert_close(before[:, : now + 1], after[:, : now + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("tree", ALL, ids=name_of)
def test_every_earlier_item_reaches_the_last_scores(tree: dict[str, Any]) -> None:
    if tree.get("num_blocks") == 0:
        pytest.skip("reads the last item only")
    model = make(name_of(tree))
    items, times = draw(4, 6, 3)
    lengths = torch.full((4,), 6)
    scores = last_scores(model, items, lengths, times)
    for place in range(6):
        changed = items.clone()
        changed[:, place] = changed[:, place] % ITEMS + 1
        moved = last_scores(model, changed, lengths, times) - scores
        assert (moved.abs().amax(dim=1) > 1e-6).all(), place


@pytest.mark.parametrize("tree", ALL, ids=name_of)
def test_a_new_model_is_its_seeds_favours_no_item_and_trains_all_its_weights(
    tree: dict[str, Any],
) -> None:
    models = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        models.append(build_model(experiment_of(tree).model, num_items=100))
    weights = [model.items.weight for model in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    model = models[0].eval()
    assert not model.items.weight[0].any()
    items, times = draw(16, 7, 0)
    targets = items % ITEMS + 1
    if isinstance(model, MaskedItemModel):
        items[:, 3:] = 0
        targets = targets[:, :4]
    elif isinstance(model, SequenceToSequence):
        targets = targets[:, :5]
    inputs = ModelInputs(items, torch.full((16,), 7), times)
    history, _ = model.teacher_forced(inputs, targets)
    candidates = model.head.represent_candidates(model.items.table())
    loss = chunked_cross_entropy(model.head.logits, history, candidates, targets, None)
    assert loss.item() == pytest.approx(math.log(100), abs=0.25)
    loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
    assert not model.items.weight.grad[0].any()  # type: ignore[index]


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


@pytest.mark.parametrize("kind", ["next_item", "hstu"])
def test_inputs_are_scaled_and_dropout_comes_after_the_sum(kind: str) -> None:
    torch.manual_seed(0)
    shape = {"embedding_dim": 9, "max_sequence_length": 4, "num_heads": 3}
    head = {"kind": "target_attention", "num_heads": 1, "head_dim": 4}
    config: NextItemConfig | HSTUConfig
    if kind == "hstu":
        config = HSTUConfig.model_validate({"kind": "hstu", "head": head, **shape})
    else:
        config = NextItemConfig.model_validate({"head": head, "feed_forward_dim": 8, **shape})
    model = build_model(config, num_items=20).double().eval()
    assert isinstance(model, NextItemModel)
    sums: list[Tensor] = []
    sources: list[Tensor] = []
    model.encoder.dropout.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    assert isinstance(model.head, TargetAttentionHead)
    model.head.kv_norm.register_forward_pre_hook(lambda _, inputs: sources.append(inputs[0]))
    items, lengths = torch.tensor([[4, 9, 2], [7, 1, 0]]), torch.tensor([3, 2])
    side = model(ModelInputs(items, lengths))
    scaled = 3 * model.items.weight[items]
    assert model.encoder.positions is not None
    positions = model.encoder.positions(positions_from_end(lengths, 3))
    assert torch.allclose(sums[0], scaled + positions, rtol=0, atol=1e-12)
    assert torch.allclose(sources[0], scaled, rtol=0, atol=1e-12)
    scores = model.head.logits(side, model.head.represent_candidates(model.items.table()))
    assert torch.allclose(scores, side[0] @ model.items.weight.T, rtol=0, atol=1e-9)
