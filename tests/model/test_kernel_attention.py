"""Kernel attention against its plain definition, and what it may do as a dot product."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.config.model import KernelAttention
from recsys.model.attention import last_states
from recsys.model.heads import KernelAttentionHead

D, P, WIDTH, HALF_LIFE = 6, 4, 3, 3.0


def make_head(dropout: float, **settings: bool) -> KernelAttentionHead:
    sizes = {"prototypes": P, "value_dim": WIDTH}
    config = KernelAttention.model_validate({"kind": "kernel_attention", **sizes, **settings})
    return KernelAttentionHead(D, config, dropout)


@pytest.fixture
def head() -> KernelAttentionHead:
    torch.manual_seed(0)
    made = make_head(0.0).double()
    rate = torch.tensor([math.log(2) / HALF_LIFE], dtype=torch.float64)
    assert torch.equal(made.decays, rate.float().double())
    made.decays = rate  # exact: the buffer was rounded to float32
    for weight in (made.value_query.weight, made.query_prototypes, made.log_sharpness):
        torch.nn.init.normal_(weight)  # nothing at its start, where much is zero or equal
    return made


def features(x: Tensor, prototypes: Tensor, log_sharpness: Tensor) -> Tensor:
    cosines = torch.stack([F.cosine_similarity(x, prototype, dim=0) for prototype in prototypes])
    return torch.softmax(log_sharpness.exp() * cosines, dim=0) * math.sqrt(P)


def plain_terms(head: KernelAttentionHead, purchases: Tensor, candidate: Tensor) -> Tensor:
    weights = 0.5 ** (torch.arange(len(purchases) - 1, -1, -1).double() / HALF_LIFE)
    query = features(candidate, head.query_prototypes, head.log_sharpness[1])
    use = head.value_query.weight @ candidate
    terms = [
        weight
        * (query @ features(purchase, head.key_prototypes, head.log_sharpness[0]))
        * (use @ (head.value.weight @ purchase))
        for weight, purchase in zip(weights, purchases, strict=True)
    ]
    return torch.stack(terms) / weights.sum()


def test_scores_and_contributions_are_those_of_the_definition(head: KernelAttentionHead) -> None:
    lengths = torch.tensor([5, 3])
    states, purchases = torch.randn(2, 2, 5, D, dtype=torch.float64)
    embeddings = torch.randn(4, D, dtype=torch.float64)
    history = head.represent_history(states, purchases)
    candidates = head.represent_candidates(embeddings)
    scores = head.logits(history, candidates)
    for user in range(2):
        for t in range(5):
            for item in range(4):
                terms = plain_terms(head, purchases[user, : t + 1], embeddings[item])
                expected = states[user, t] @ embeddings[item] + terms.sum()
                assert scores[user, t, item].item() == pytest.approx(expected.item(), abs=1e-9)
    contributions = head.contributions(history, candidates, lengths)
    for user, length in enumerate(lengths.tolist()):
        terms = plain_terms(head, purchases[user, :length], embeddings[2])
        assert torch.allclose(contributions[user, :length, 2], terms, atol=1e-9)
        assert not contributions[user, length:].any()


def test_the_last_states_alone_give_the_last_scores(head: KernelAttentionHead) -> None:
    lengths = torch.tensor([5, 3])
    states, purchases = torch.randn(2, 2, 5, D, dtype=torch.float64)
    candidates = head.represent_candidates(torch.randn(4, D, dtype=torch.float64))
    full = head.logits(head.represent_history(states, purchases), candidates)
    last = head.represent_history(last_states(states, lengths)[:, None], purchases, lengths)
    scores = head.score_last(head.select_last(last, lengths), candidates)
    assert torch.allclose(scores, last_states(full, lengths), atol=1e-9)
    own = candidates.embeddings[torch.tensor([[0, 1, 2, 3, 0], [3, 2, 1, 0, 3]])]
    targets = candidates._replace(embeddings=own)
    of_targets = head.score_targets(head.represent_history(states, purchases), targets)
    assert torch.allclose(of_targets[1, 2], full[1, 2, 1], atol=1e-9)


def test_training_starts_from_the_dot_product() -> None:
    head = make_head(0.5)
    states, purchases, embeddings = torch.randn(2, 5, D), torch.randn(2, 5, D), torch.randn(4, D)
    scores = head.logits(
        head.represent_history(states, purchases), head.represent_candidates(embeddings)
    )
    assert torch.allclose(scores, states @ embeddings.T, atol=1e-6)


@pytest.mark.parametrize("dropped", [False, True])
def test_candidates_have_dropout_in_training_alone_and_never_in_the_dot_product(
    dropped: bool,
) -> None:
    head, embeddings = make_head(0.5, candidate_dropout=dropped), torch.randn(40, D)
    torch.nn.init.normal_(head.value_query.weight)
    first, again = (head.represent_candidates(embeddings).embeddings for _ in range(2))
    assert torch.equal(first[:, :D], embeddings)
    assert torch.equal(first, again) != dropped
    head.eval()
    assert torch.equal(*(head.represent_candidates(embeddings).embeddings for _ in range(2)))
