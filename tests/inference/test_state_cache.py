"""Kept states: the scores of a model, whatever was asked before; in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from recsys.config import (
    AveragedConfig,
    AveragedMember,
    HSTUConfig,
    ModelConfig,
    NextItemConfig,
    TargetAttention,
)
from recsys.data.histories import Histories
from recsys.inference import model_scorer
from recsys.inference.model_scorer import ModelScorer, StateCache, _size
from recsys.model.build import build_model
from recsys.model.heads import DotProductHead, LastRepresentation
from recsys.model.models import Model

NUM_ITEMS, LENGTH = 6, 4
MEMBERS = (
    NextItemConfig(
        embedding_dim=8,
        max_sequence_length=LENGTH,
        head=TargetAttention(num_heads=2, head_dim=4, half_life=(0.1, 2.0)),
        filter=True,
    ),
    HSTUConfig(
        kind="hstu",
        embedding_dim=8,
        max_sequence_length=LENGTH,
        times="request",
    ),
)
CONFIGS: list[ModelConfig] = [
    *MEMBERS,
    AveragedConfig(kind="averaged", members=tuple(AveragedMember(model=one) for one in MEMBERS)),
]
USERS = st.lists(
    st.tuples(st.lists(st.integers(1, NUM_ITEMS), min_size=1, max_size=6), st.integers(0, 2)),
    min_size=1,
    max_size=5,
)
"""The items of users, and when they ask."""


def model_of(config: ModelConfig) -> Model:
    torch.manual_seed(5)
    model = build_model(config, NUM_ITEMS)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return model.eval()


def histories_of(users: list[tuple[list[int], int]]) -> Histories:
    given = Histories.from_lists([items for items, _ in users])
    times = np.concatenate([np.arange(len(items)) * 50 for items, _ in users])
    asked = np.array([1_000 * 10**when for _, when in users])
    return Histories(given.items, given.offsets, times, asked)


@pytest.mark.parametrize("config", CONFIGS)
@settings(max_examples=25, deadline=None)
@given(asked=st.lists(USERS, min_size=1, max_size=8), most=st.sampled_from([0, 700, 3_000, 10**6]))
def test_kept_states_change_no_score(config: ModelConfig, asked: list[Any], most: int) -> None:
    """Any requests in any order, with a cache of any size, over several scorers of one model."""
    model, states = model_of(config), StateCache(most)
    kept = ModelScorer(model, LENGTH, trained=True, states=states)
    retriever = ModelScorer(model, LENGTH, DotProductHead(), trained=True, states=states)
    plain = ModelScorer(model, LENGTH)
    few = 2 if isinstance(config, NextItemConfig) else NUM_ITEMS  # some, or nearly all
    for users in asked:
        histories = histories_of(users)
        candidates = np.tile(np.arange(1, few + 1, dtype=np.int32), (len(users), 1))
        for scorer, other in (
            (kept, plain),
            (retriever, ModelScorer(model, LENGTH, DotProductHead())),
        ):
            if scorer is retriever and not isinstance(config, NextItemConfig):
                continue  # the first part of a mixture is no state
            for chosen in (None, candidates):
                found, expected = (one.score(histories, chosen).numpy() for one in (scorer, other))
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert states.bytes <= most
    assert states.hits + states.misses > 0


def test_a_known_history_costs_no_encoder_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(CONFIGS[0])
    encoded: list[int] = []
    encode_last = model.encode_last

    def counted(inputs: Any) -> Any:
        encoded.append(len(inputs.items))
        return encode_last(inputs)

    monkeypatch.setattr(model, "encode_last", counted)
    states = StateCache(1 << 20)
    scorer = ModelScorer(model, LENGTH, trained=True, states=states)
    scorer.score(Histories.from_lists([[1, 2], [3, 4], [1, 2]]))
    assert sum(encoded) == 2
    # A known one, one that is the same to the model, which reads four items, and a new one.
    scorer.score(Histories.from_lists([[3, 4], [5, 1, 2, 3, 4]]))
    scorer.score(Histories.from_lists([[6, 1, 2, 3, 4], [1, 2]]))
    assert sum(encoded) == 3
    assert (states.hits, states.misses) == (4, 3)


def test_the_least_recently_used_state_is_dropped() -> None:
    model = model_of(CONFIGS[0])
    sized = StateCache(1 << 20)
    ModelScorer(model, LENGTH, states=sized).score(Histories.from_lists([[1]]))
    states = StateCache(2 * sized.bytes)
    scorer = ModelScorer(model, LENGTH, states=states)
    for item in (1, 2, 1, 3):  # of one size each: 3 takes the place of 2
        scorer.score(Histories.from_lists([[item]]))
    assert (states.hits, states.misses, states.bytes) == (1, 3, 2 * sized.bytes)
    scorer.score(Histories.from_lists([[1]]))
    assert states.hits == 2
    scorer.score(Histories.from_lists([[2]]))
    assert states.misses == 4


def test_what_is_kept_on_a_gpu_takes_whole_pieces_of_its_memory() -> None:
    with FakeTensorMode():
        for device, expected in (("cpu", 5 + 4 + 513), ("cuda", 5 + 512 + 1024)):
            number = torch.empty(1, dtype=torch.int32, device=device)
            nothing = torch.empty(0, device=device)
            keys = torch.empty(513, dtype=torch.int8, device=device)
            state = LastRepresentation(number, keys, nothing, nothing)
            assert _size((b"abc", b"de"), state) == expected


def test_rows_of_kept_states_and_steps_may_be_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few tokens: parts of a request are kept, others are not."""
    monkeypatch.setattr(model_scorer, "_CPU_STEP", model_scorer._Step(5, 7))
    model, states = model_of(CONFIGS[0]), StateCache(1 << 20)
    scorer = ModelScorer(model, LENGTH, trained=True, states=states)
    histories = Histories.from_lists([[1], [2, 3, 4, 5], [6, 6], [1, 2, 3]])
    scorer.score(histories.take(np.array([1, 2])))
    found = scorer.score(histories).numpy()
    expected = ModelScorer(model, LENGTH).score(histories).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert states.hits == 2
