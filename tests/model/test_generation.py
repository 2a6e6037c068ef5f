"""The cache changes nothing, a beam finds the most probable list, no item comes twice."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.config.model import SequenceToSequenceConfig
from recsys.errors import InputError
from recsys.model.build import build_model
from recsys.model.sequence_to_sequence import (
    Beam,
    EncodedHistory,
    Greedy,
    Sampling,
    SequenceToSequence,
)
from tests.helpers.random_models import drawn

ITEMS = 9


def make_model(seed: int, **settings: object) -> SequenceToSequence:
    torch.manual_seed(seed)
    config = SequenceToSequenceConfig.model_validate(
        {
            "kind": "sequence_to_sequence",
            "embedding_dim": 8,
            "feed_forward_dim": 16,
            "max_sequence_length": 6,
            "max_generated": ITEMS + 3,
            **settings,
        }
    )
    model = build_model(config, ITEMS)
    assert isinstance(model, SequenceToSequence)
    return drawn(model).double().eval()


def encode_random(model: SequenceToSequence, users: int = 4) -> EncodedHistory:
    items = torch.randint(1, ITEMS + 1, (users, 6))
    lengths = torch.randint(1, 7, (users,))
    return model.encode(items * (torch.arange(6) < lengths[:, None]), lengths)


def everything(users: int = 4) -> Tensor:
    return torch.ones(users, ITEMS + 1, dtype=torch.bool)


def log_probability(model: SequenceToSequence, encoded: EncodedHistory, tokens: Tensor) -> Tensor:
    """Log-probability of lists [B, n] without repeats, by uncached passes through the decoder."""
    logits = model.decode(encoded, tokens[:, :-1]) @ model.items.weight.T
    total = torch.zeros(len(tokens), dtype=torch.float64)
    for step in range(tokens.shape[1]):
        scores = logits[:, step].clone()
        scores[:, 0] = -math.inf
        scores.scatter_(1, tokens[:, :step], -math.inf)
        total += scores.log_softmax(-1).gather(1, tokens[:, step : step + 1])[:, 0]
    return total


@given(st.integers(0, 10_000), st.sampled_from(["pre", "post"]), st.integers(1, 6))
@settings(max_examples=30)
def test_cached_greedy_generation_equals_uncached(seed: int, norm: str, length: int) -> None:
    model = make_model(seed, norm=norm)
    encoded = encode_random(model)
    found, totals = Greedy()(model, encoded, everything(), length)
    tokens = torch.empty(4, 0, dtype=torch.int64)
    for _ in range(length):
        scores = model.decode(encoded, tokens)[:, -1] @ model.items.weight.T
        scores[:, 0] = -math.inf
        scores.scatter_(1, tokens, -math.inf)
        tokens = torch.cat([tokens, scores.argmax(1, keepdim=True)], dim=1)
    assert found[:, 0].tolist() == tokens.tolist()
    expected = log_probability(model, encoded, tokens)
    assert torch.allclose(totals[:, 0].double(), expected, atol=1e-4)


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 6))
@settings(max_examples=25)
def test_the_lists_of_a_beam_have_their_probabilities(seed: int, width: int, length: int) -> None:
    model = make_model(seed)
    encoded = encode_random(model)
    beam, totals = Beam(width)(model, encoded, everything(), length)
    assert (totals.diff(dim=1) <= 0).all(), "the best list comes first"
    for hypothesis in range(beam.shape[1]):  # the cache followed the hypotheses
        expected = log_probability(model, encoded, beam[:, hypothesis])
        found = totals[:, hypothesis].double()
        assert torch.allclose(found, expected, atol=1e-4)


def repeated(encoded: EncodedHistory, user: int, times: int) -> EncodedHistory:
    def of_user(side: Tensor) -> Tensor:
        return side[user].expand(times, *side.shape[1:])

    pairs = [(of_user(keys), of_user(values)) for keys, values in encoded.keys_values]
    return EncodedHistory(pairs, of_user(encoded.mask))


def test_a_beam_of_one_is_greedy_and_a_full_beam_is_exhaustive() -> None:
    model = make_model(1)
    encoded = encode_random(model)
    greedy, _ = Greedy()(model, encoded, everything(), 4)
    assert Beam(1)(model, encoded, everything(), 4)[0].equal(greedy)
    beam, totals = Beam(ITEMS)(model, encoded, everything(), 2)  # every first item is kept
    first, second = torch.meshgrid(torch.arange(1, 10), torch.arange(1, 10), indexing="ij")
    pairs = torch.stack([first, second], dim=-1).flatten(0, 1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    for user in range(4):
        scores = log_probability(model, repeated(encoded, user, len(pairs)), pairs)
        assert beam[user, 0].tolist() == pairs[scores.argmax()].tolist()
        top = scores.sort(descending=True).values[:ITEMS]
        assert torch.allclose(totals[user].double(), top, atol=1e-4)


def test_samples_follow_the_probabilities() -> None:
    model = make_model(3)
    encoded = encode_random(model, users=1)
    many = repeated(encoded, 0, 20_000)
    nothing = torch.empty(1, 0, dtype=torch.int64)
    logits = (model.decode(encoded, nothing)[0, 0] @ model.items.weight.T)[1:].detach()
    generator = torch.Generator().manual_seed(0)

    def shares(**how: float) -> Tensor:
        sampling = Sampling(generator, **how)
        tokens = sampling(model, many, everything(20_000), 1)[0].flatten()
        return torch.bincount(tokens, minlength=ITEMS + 1)[1:] / 20_000

    plain = logits.softmax(0)
    assert torch.allclose(shares().double(), plain, atol=0.02)
    assert torch.allclose(shares(temperature=3.0).double(), (logits / 3).softmax(0), atol=0.02)
    order = plain.argsort(descending=True)
    nucleus = plain[order[:2]].sum().item() + 1e-6  # the third item is needed to reach it
    three = torch.zeros_like(plain)
    three[order[:3]] = plain[order[:3]]
    assert torch.allclose(shares(top_p=nucleus).double(), three / three.sum(), atol=0.02)
    assert shares(top_p=1e-9)[order[0]] == 1, "one item always stays"


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_impossible_sampling_is_refused(how: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(how))):
        Sampling(torch.Generator(), **how)
    with pytest.raises(InputError, match="beam width 0"):
        Beam(0)
