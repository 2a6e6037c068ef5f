"""The neural scorer: the scores of the model, whatever the batching and whatever is kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.config.model import (
    AveragedConfig,
    AveragedMember,
    DotProduct,
    HSTUConfig,
    ModelConfig,
    NextItemConfig,
    TargetAttention,
)
from recsys.data.histories import Histories
from recsys.inference import model_scorer
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Seen
from recsys.model.build import build_model
from recsys.model.heads import DotProductHead
from recsys.model.models import Model, ModelInputs

NUM_ITEMS, LENGTH = 11, 4
LARGE = 70_000
"""Items: so many that they are scored in several steps."""
HEADS: list[DotProduct | TargetAttention] = [
    DotProduct(),
    TargetAttention(num_heads=2, head_dim=4, half_life=(0.0005, 2.0)),
    TargetAttention(num_heads=2, head_dim=4, half_life=(0.0005, 2.0), pooling="sum"),
]
PLAIN, ATTENDING, SUMMING = (
    NextItemConfig(embedding_dim=8, feed_forward_dim=16, max_sequence_length=LENGTH, head=head)
    for head in HEADS
)
TIMED = HSTUConfig(kind="hstu", embedding_dim=8, max_sequence_length=LENGTH, times="request")
MEAN = AveragedConfig(
    kind="averaged", members=(AveragedMember(model=ATTENDING), AveragedMember(model=TIMED))
)
USERS = st.lists(
    st.lists(st.integers(1, NUM_ITEMS), min_size=1, max_size=7), min_size=1, max_size=12
)


def make_model(config: ModelConfig, num_items: int = NUM_ITEMS) -> Model:
    torch.manual_seed(5)
    model = build_model(config, num_items)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.mark.parametrize("config", [PLAIN, ATTENDING, SUMMING])
@settings(max_examples=25, deadline=None)
@given(lists=USERS, tokens=st.integers(1, 20), elements=st.integers(1, 200))
def test_any_steps_give_what_the_model_gives_one_by_one(
    config: ModelConfig, lists: list[list[int]], tokens: int, elements: int
) -> None:
    model = make_model(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_scorer, "_CPU_STEP", (tokens, elements))
        scores = ModelScorer(model, LENGTH).score(Histories.from_lists(lists))
    assert scores.shape == (len(lists), NUM_ITEMS + 1)
    model.eval()
    for row, items in zip(scores, lists, strict=True):
        latest = torch.tensor([items[-LENGTH:]])
        lengths = torch.tensor([latest.shape[1]])
        candidates = model.head.represent_candidates(model.items.weight)
        last = model.head.select_last(model(ModelInputs(latest, lengths)), lengths)
        expected = model.head.score_last(last, candidates)[0]
        assert row[0] == -torch.inf
        torch.testing.assert_close(row[1:], expected[1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [PLAIN, ATTENDING])
@settings(max_examples=25, deadline=None)
@given(
    lists=USERS,
    count=st.integers(1, 2 * NUM_ITEMS),
    tokens=st.integers(1, 20),
    elements=st.integers(1, 500),
    same=st.booleans(),
)
def test_candidates_score_as_they_do_in_the_catalogue(
    config: ModelConfig,
    lists: list[list[int]],
    count: int,
    tokens: int,
    elements: int,
    same: bool,
) -> None:
    """Candidates of each history or the same for all, in any order, repeated or PAD."""
    scorer = ModelScorer(make_model(config), LENGTH)
    histories = Histories.from_lists(lists)
    drawn = np.random.default_rng(count).integers(0, NUM_ITEMS + 1, (len(lists), count))
    candidates = drawn.astype(np.int32)
    if same:
        candidates[:] = candidates[0]
    expected = scorer.score(histories).gather(1, torch.from_numpy(candidates).long())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_scorer, "_CPU_STEP", (tokens, elements))
        found = scorer.score(histories, candidates)
    assert torch.equal(found == -math.inf, torch.from_numpy(candidates) == 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("config", "seen"), [(PLAIN, "filter"), (ATTENDING, "allow")])
def test_the_best_of_a_large_catalogue_do_not_depend_on_the_steps(
    config: ModelConfig, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = ModelScorer(make_model(config, LARGE), LENGTH)
    rng = np.random.default_rng(0)
    histories = Histories.from_lists([rng.integers(1, LARGE + 1, n) for n in (3, 1, 9, 2, 5)])
    liked, _ = top_k(scorer, histories, 100, "allow")
    histories = Histories.from_lists(liked[:, ::10].tolist())  # to be recommended again
    whole, whole_values = top_k(scorer, histories, 10, seen)
    monkeypatch.setattr(model_scorer, "_CPU_STEP", (12, 100_000))
    items, values = top_k(scorer, histories, 10, seen)
    np.testing.assert_allclose(values, whole_values, rtol=0, atol=1e-5)
    assert np.mean(items == whole) > 0.9  # but for scores that differ by rounding only
    kept = [set(row) & set(own) for row, own in zip(items, liked[:, ::10], strict=True)]
    assert any(kept) == (seen == "allow")


def test_scores_are_float32_and_without_dropout_and_the_model_keeps_its_mode() -> None:
    model = make_model(ATTENDING).train()
    scorer, histories = ModelScorer(model, LENGTH), Histories.from_lists([[1, 2, 3]])
    plain = scorer.score(histories)
    assert torch.equal(scorer.score(histories), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scorer.score(histories), plain)
    assert model.training


def test_no_histories_have_no_scores_and_an_empty_one_is_refused() -> None:
    scorer = ModelScorer(make_model(PLAIN), LENGTH)
    assert scorer.score(Histories.from_lists([])).shape == (0, NUM_ITEMS + 1)
    with pytest.raises(ValueError, match="history 1 is empty"):
        scorer.score(Histories.from_lists([[1], [], [2]]))


# --- Kept states ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [ATTENDING, TIMED, MEAN])
@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(st.tuples(USERS, st.integers(0, 2)), min_size=1, max_size=8),
    most=st.sampled_from([0, 700, 3_000, 10**6]),
    tokens=st.sampled_from([5, 4096]),
)
def test_kept_states_change_no_score(
    config: ModelConfig, requests: list[tuple[list[list[int]], int]], most: int, tokens: int
) -> None:
    """Any requests in any order, with a cache of any size, over several scorers of one model."""
    model, states = make_model(config).eval(), StateCache(most)
    heads = [None, DotProductHead()] if config is ATTENDING else [None]
    for users, when in requests:
        items = Histories.from_lists(users)
        times = np.concatenate([np.arange(len(user)) * 50 for user in users])
        request_times = np.full(len(users), 1_000 * 10**when)
        histories = Histories(items.items, items.offsets, times, request_times)
        for head in heads:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(model_scorer, "_CPU_STEP", (tokens, 1 << 19))
                kept = ModelScorer(model, LENGTH, head, states=states)
                found = kept.score(histories).numpy()
            expected = ModelScorer(model, LENGTH, head).score(histories).numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert states.bytes <= most
    assert states.hits + states.misses > 0


def test_a_known_history_costs_no_encoder_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model, states, encoded = make_model(ATTENDING).eval(), StateCache(1 << 20), list[int]()
    scorer, encode_last = ModelScorer(model, LENGTH, states=states), model.encode_last
    scorer.score(Histories.from_lists([[7]]))  # and what a purchase of each item adds

    def counted(inputs: Any) -> Any:
        encoded.append(len(inputs.items))
        return encode_last(inputs)

    monkeypatch.setattr(model, "encode_last", counted)
    scorer.score(Histories.from_lists([[1, 2], [3, 4], [1, 2]]))
    assert sum(encoded) == 2
    # A known one, one that is the same to the model, which reads four items, and a new one.
    scorer.score(Histories.from_lists([[3, 4], [5, 1, 2, 3, 4]]))
    scorer.score(Histories.from_lists([[6, 1, 2, 3, 4], [1, 2]]))
    assert sum(encoded) == 3
    assert (states.hits, states.misses) == (4, 4)


def test_the_least_recently_used_state_is_dropped() -> None:
    model, sized = make_model(ATTENDING).eval(), StateCache(1 << 20)
    ModelScorer(model, LENGTH, states=sized).score(Histories.from_lists([[1]]))
    states = StateCache(2 * sized.bytes)
    scorer = ModelScorer(model, LENGTH, states=states)
    for item in (1, 2, 1, 3):  # of one size each: 3 takes the place of 2
        scorer.score(Histories.from_lists([[item]]))
    assert (states.hits, states.misses, states.bytes) == (1, 3, 2 * sized.bytes)
    scorer.score(Histories.from_lists([[1], [2]]))
    assert (states.hits, states.misses) == (2, 4)
