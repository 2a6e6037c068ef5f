"""The neural scorer: the scores of the model, whatever the batching."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.config import DotProduct, NextItemConfig, TargetAttention
from recsys.data.histories import Histories
from recsys.inference import model_scorer
from recsys.inference.model_scorer import ModelScorer
from recsys.model.build import build_model
from recsys.model.heads import DotProductHead, TargetAttentionHead
from recsys.model.models import Model, ModelInputs

NUM_ITEMS, LENGTH = 11, 4
AnyHead = DotProduct | TargetAttention
HEADS: list[AnyHead] = [DotProduct(), TargetAttention(num_heads=2, head_dim=4)]
HISTORIES = st.lists(
    st.lists(st.integers(1, NUM_ITEMS), min_size=1, max_size=7), min_size=1, max_size=12
)


def make_model(head: AnyHead) -> Model:
    torch.manual_seed(5)
    config = NextItemConfig(
        embedding_dim=8, feed_forward_dim=16, max_sequence_length=LENGTH, head=head
    )
    model = build_model(config, NUM_ITEMS)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=25, deadline=None)
@given(lists=HISTORIES, tokens=st.integers(1, 20), elements=st.integers(1, 200))
def test_any_steps_give_what_the_model_gives_one_by_one(
    head: AnyHead, lists: list[list[int]], tokens: int, elements: int
) -> None:
    model = make_model(head)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_scorer, "_CPU_STEP", model_scorer._Step(tokens, elements))
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


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=25, deadline=None)
@given(
    lists=HISTORIES,
    count=st.integers(1, 2 * NUM_ITEMS),
    tokens=st.integers(1, 20),
    elements=st.integers(1, 500),
    same=st.booleans(),
    trained=st.booleans(),
)
def test_candidates_score_as_they_do_in_the_catalogue(
    head: AnyHead,
    lists: list[list[int]],
    count: int,
    tokens: int,
    elements: int,
    same: bool,
    trained: bool,
) -> None:
    """Candidates of each history or the same for all, in any order, repeated or PAD."""
    scorer = ModelScorer(make_model(head), LENGTH, trained=trained)
    histories = Histories.from_lists(lists)
    drawn = np.random.default_rng(count).integers(0, NUM_ITEMS + 1, (len(lists), count))
    candidates = drawn.astype(np.int32)
    if same:
        candidates[:] = candidates[0]
    expected = scorer.score(histories).gather(1, torch.from_numpy(candidates).long())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_scorer, "_CPU_STEP", model_scorer._Step(tokens, elements))
        found = scorer.score(histories, candidates)
    assert torch.equal(found == -math.inf, torch.from_numpy(candidates) == 0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_another_head_scores_in_place_of_the_models_own() -> None:
    model = make_model(HEADS[1])
    histories = Histories.from_lists([[1, 2, 3], [4]])
    retriever, exact = ModelScorer(model, LENGTH, DotProductHead()), ModelScorer(model, LENGTH)
    assert not torch.allclose(retriever.score(histories)[:, 1:], exact.score(histories)[:, 1:])
    assert isinstance(model.head, TargetAttentionHead)
    torch.nn.init.zeros_(model.head.value_query.weight)  # target attention adds nothing
    torch.testing.assert_close(retriever.score(histories), exact.score(histories))


def test_the_model_keeps_its_mode_and_scores_without_dropout() -> None:
    model = make_model(HEADS[0]).train()
    scorer = ModelScorer(model, LENGTH)
    histories = Histories.from_lists([[1, 2, 3]])
    assert torch.equal(scorer.score(histories), scorer.score(histories))
    assert model.training


def test_scores_are_float32_under_autocast() -> None:
    scorer = ModelScorer(make_model(HEADS[1]), LENGTH)
    histories = Histories.from_lists([[1, 2, 3]])
    plain = scorer.score(histories)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scorer.score(histories), plain)


def test_an_empty_history_is_refused() -> None:
    scorer = ModelScorer(make_model(HEADS[0]), LENGTH)
    with pytest.raises(ValueError, match="history 1 is empty"):
        scorer.score(Histories.from_lists([[1], [], [2]]))


def test_no_histories_no_scores() -> None:
    scorer = ModelScorer(make_model(HEADS[0]), LENGTH)
    assert scorer.score(Histories.from_lists([])).shape == (0, NUM_ITEMS + 1)
