"""Target attention at all positions against the plain definition, candidate by candidate."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.config.model import TargetAttention
from recsys.model.attention import last_states
from recsys.model.heads import TargetAttentionHead

DIM = 6
shapes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "length": st.integers(1, 9),
        "candidates": st.integers(1, 5),
        "heads": st.integers(1, 3),
        "pooling": st.sampled_from(["average", "sum"]),
        "seed": st.integers(0, 2**16),
    }
)


def make_head(heads: int, pooling: Any, seed: int) -> TargetAttentionHead:
    torch.manual_seed(seed)
    half_life = 0.5, 0.5 * 4 ** (heads - 1)
    config = TargetAttention(num_heads=heads, head_dim=4, half_life=half_life, pooling=pooling)
    head = TargetAttentionHead(DIM, config, dropout=0.0)
    torch.nn.init.normal_(head.value_query.weight)  # zero at the start: nothing would be tested
    torch.nn.init.normal_(head.log_temperature)
    return head.double()


def plain_definition(
    head: TargetAttentionHead, states: Tensor, embedded: Tensor, embeddings: Tensor
) -> Tensor:
    """TARGET_ATTENTION.md literally: masked softmax attention, for each candidate and position."""
    mean = embedded.mean(-1, keepdim=True)
    spread = embedded.var(-1, keepdim=True, unbiased=False)
    normed = (embedded - mean) / (spread + 1e-5).sqrt()
    normed = normed * head.kv_norm.weight + head.kv_norm.bias
    rows = []
    for sequence in range(states.shape[0]):
        for t in range(states.shape[1]):
            for c in range(embeddings.shape[0]):
                score = states[sequence, t] @ embeddings[c]
                for h in range(head.num_heads):
                    part = slice(4 * h, 4 * h + 4)
                    query = head.query.weight[part] @ embeddings[c]
                    use = head.value_query.weight[part] @ embeddings[c]
                    keys = normed[sequence, : t + 1] @ head.key.weight[part].T
                    values = normed[sequence, : t + 1] @ head.value.weight[part].T
                    cosine = torch.cosine_similarity(query[None], keys, dim=-1, eps=1e-12)
                    temperature = head.log_temperature[h].exp().clamp(max=10.0)
                    age = torch.arange(t, -1, -1, dtype=torch.float64)
                    logits = temperature * cosine - head.decays[h] * age
                    weights = torch.softmax(logits, dim=0)
                    if head.poolings[0] == "sum":
                        recency = torch.softmax(-head.decays[h] * age, dim=0)
                        weights = torch.exp(temperature * cosine) * recency
                    score = score + (weights * (values @ use)).sum()
                rows.append(score)
    return torch.stack(rows).view(*states.shape[:2], embeddings.shape[0])


def make_case(shape: dict[str, Any]) -> tuple[TargetAttentionHead, tuple[Tensor, Tensor, Tensor]]:
    head = make_head(shape["heads"], shape["pooling"], shape["seed"])
    batch, length = shape["batch"], shape["length"]
    sizes = ((batch, length, DIM), (batch, length, DIM), (shape["candidates"], DIM))
    states, embedded, embeddings = (
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes
    )
    return head, (states, embedded, embeddings)


@settings(max_examples=30, deadline=None)
@given(shapes)
def test_logits_equal_the_plain_definition_with_gradients(shape: dict[str, Any]) -> None:
    head, (states, embedded, embeddings) = make_case(shape)
    fast = head.logits(
        head.represent_history(states, embedded), head.represent_candidates(embeddings)
    )
    plain = plain_definition(head, states, embedded, embeddings)
    assert torch.allclose(fast, plain, rtol=0, atol=1e-9)

    leaves = [states, embedded, embeddings, *head.parameters()]
    upstream = torch.randn_like(fast)
    for one, other in zip(
        torch.autograd.grad(fast, leaves, upstream, allow_unused=True),
        torch.autograd.grad(plain, leaves, upstream, allow_unused=True),
        strict=True,
    ):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.allclose(
                one, other, rtol=0, atol=1e-9 * max(1.0, other.abs().max().item())
            )


@settings(max_examples=25, deadline=None)
@given(shapes)
def test_last_scores_are_the_last_row_of_logits_whatever_the_padding(shape: dict[str, Any]) -> None:
    head, (states, embedded, embeddings) = make_case(shape)
    batch, length = shape["batch"], shape["length"]
    lengths = torch.randint(1, length + 1, (batch,))
    history, candidates = (
        head.represent_history(states, embedded),
        head.represent_candidates(embeddings),
    )
    last = head.score_last(head.select_last(history, lengths), candidates)
    every = head.logits(history, candidates)
    assert torch.allclose(last, last_states(every, lengths), rtol=0, atol=1e-9)
    targets = torch.randint(shape["candidates"], (batch, length))
    of_targets = head.score_targets(history, head.represent_candidates(embeddings[targets]))
    expected = every.gather(-1, targets[..., None])[..., 0]
    assert torch.allclose(of_targets, expected, rtol=0, atol=1e-9)

    parts = head.contributions(history, candidates, lengths)
    dot = last_states(states, lengths) @ embeddings.T
    assert torch.allclose(dot + parts.sum(dim=1), last, rtol=0, atol=1e-9)
    for row, real in enumerate(lengths.tolist()):
        assert not parts[row, real:].any()
