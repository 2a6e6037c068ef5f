"""Attention maps: the right weights under the right names."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys.config import (
    Experiment,
    FactorisationMachineConfig,
    MaskedItemConfig,
    SequenceToSequenceConfig,
)
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.model.attention import MultiHeadAttention
from recsys.model.build import build_model
from recsys.model.model_inputs import ModelInputs
from recsys.model.next_item import NextItemModel
from recsys.model.recorded_attention import record_attention
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.model.target_attention import TargetAttentionHead
from recsys.serving.attention_maps import AttentionMap, inspect
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]


@pytest.fixture(scope="module")
def generative_bundle(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    """An encoder of one block, a decoder of two; it reads four items and generates five."""
    config = SequenceToSequenceConfig(
        kind="sequence_to_sequence",
        embedding_dim=8,
        feed_forward_dim=16,
        num_encoder_blocks=1,
        num_decoder_blocks=2,
        max_sequence_length=4,
        max_generated=5,
    )
    return write_bundle(tmp_path_factory.mktemp("bundle") / "s2s", tiny_dataset, config)


def write_bundle(
    path: Path,
    dataset: PreparedDataset,
    config: SequenceToSequenceConfig | FactorisationMachineConfig | MaskedItemConfig,
) -> ModelBundle:
    torch.manual_seed(4)
    model = build_model(config, dataset.num_items)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    with torch.no_grad():
        model.items.weight[0] = 0
    return ModelBundle.write(path, model, Experiment(model=config), dataset, ("train",))


def softmax(scores: Tensor) -> Tensor:
    """The softmax of one row, by its definition."""
    return scores.exp() / scores.exp().sum()


def test_an_encoder_map_is_the_formula(tiny_bundle: ModelBundle) -> None:
    model = tiny_bundle.model
    assert isinstance(model, NextItemModel)
    attention, _ = inspect(tiny_bundle, ["hat", "boots", "hat"])
    assert (attention.name, attention.causal) == ("encoder-block-1", True)
    assert attention.rows == attention.columns == ["1 Top hat", "2 Snow boots", "3 Top hat"]

    with torch.inference_mode():
        x = model.items.weight[[3, 1, 3]] * 8**0.5
        x = x + model.encoder.positions(torch.tensor([2, 1, 0]))  # from the end
    check_causal_map(attention, model.encoder.blocks[0], x)


def test_a_decoder_map_is_the_formula_for_generated_items(generative_bundle: ModelBundle) -> None:
    model = generative_bundle.model
    assert isinstance(model, SequenceToSequence)
    generated = Recommender(generative_bundle).generate([["hat"]], n=3)["item_id"].to_list()
    decoder = inspect(generative_bundle, ["hat"], n=3)[1]
    with torch.inference_mode():
        x = torch.stack(
            [model.begin, *model.items.weight[[1 + ITEMS.index(i) for i in generated[:2]]]]
        )
        x = x * 8**0.5 + model.decoder.positions(torch.arange(3))
    check_causal_map(decoder, model.decoder.blocks[0], x)


def check_causal_map(attention: AttentionMap, block: nn.Module, x: Tensor) -> None:
    """Against the formula on the first block's input [L, 8], for two heads of 4."""
    layer, norm = block.attention, block.attention_norm
    assert isinstance(layer, MultiHeadAttention)
    assert isinstance(norm, nn.LayerNorm)
    with torch.inference_mode():
        x = nn.functional.layer_norm(x, [8], norm.weight, norm.bias)
        projected = x @ layer.query_key_value.weight.T + layer.query_key_value.bias
    assert attention.weights.shape == (2, len(x), len(x))
    for head in range(2):
        query = projected[:, 4 * head : 4 * head + 4]
        key = projected[:, 8 + 4 * head : 12 + 4 * head]
        for row in range(len(x)):
            expected = softmax(key[: row + 1] @ query[row] / math.sqrt(4))
            found = attention.weights[head, row]
            assert found[: row + 1] == pytest.approx(expected.numpy(), abs=1e-5)
            assert not found[row + 1 :].any(), "nothing later is seen"


def test_the_map_of_target_attention_is_the_formula(tiny_bundle: ModelBundle) -> None:
    model = tiny_bundle.model
    head = model.head
    assert isinstance(head, TargetAttentionHead)
    _, attention = inspect(tiny_bundle, ["hat", "boots", "socks"], items=["jacket", "hat"])
    assert attention.name == "target"
    assert attention.rows == ["1 jacket", "2 Top hat"]
    assert attention.columns == ["1 Top hat", "2 Snow boots", "3 socks"]
    assert attention.heads == [
        "head 1, half-life 2 purchases",
        "head 2, half-life 50 purchases",
    ]
    with torch.inference_mode():
        keys = head.key(head.kv_norm(model.items.weight[[3, 1, 5]] * 8**0.5))
        queries = head.query(model.items.weight[[4, 3]])
        temperature = head.log_temperature.exp().clamp(max=10)
    for h, half_life in enumerate([2, 50]):
        part = slice(4 * h, 4 * h + 4)
        for row in range(2):
            cosine = torch.cosine_similarity(queries[row, part], keys[:, part], dim=-1)
            age = torch.tensor([2.0, 1.0, 0.0])
            expected = softmax(temperature[h] * cosine - math.log(2) / half_life * age)
            assert attention.weights[h, row] == pytest.approx(expected.numpy(), abs=1e-5)


def test_contributions_are_weights_times_values() -> None:
    torch.manual_seed(0)
    head = TargetAttentionHead(
        8, 4, [2.0, 9.0], kv_source="items", pooling="average", dropout=0.0
    ).double()
    nn.init.normal_(head.value_query.weight)
    states, lengths = torch.randn(3, 5, 8, dtype=torch.float64), torch.tensor([5, 1, 3])
    history = head.represent_history(states, states)
    candidates = head.represent_candidates(torch.randn(6, 8, dtype=torch.float64))
    attention = head.attention(history, candidates, lengths)
    weights = attention.weights
    assert weights.shape == (3, 2, 5, 6)
    assert torch.allclose(weights.sum(dim=2), torch.ones(3, 2, 6).double())
    assert not weights[1, :, 1:].any()
    assert not weights[2, :, 3:].any()
    value_scores = history[2] @ candidates[2].mT  # [B, H, L, C]
    expected = (weights * value_scores).sum(dim=1)
    assert torch.allclose(attention.contributions, expected)


@pytest.mark.slow
@given(history=st.lists(st.sampled_from([*ITEMS, "unheard of"]), max_size=7), n=st.integers(1, 5))
def test_a_decoder_attends_to_generated_items_and_to_the_history(
    generative_bundle: ModelBundle, history: list[str], n: int
) -> None:
    positions = [position for position, item in enumerate(history, 1) if item != "unheard of"][-4:]
    left = len(set(ITEMS) - set(history))
    if not positions or not left:
        return
    maps = inspect(generative_bundle, history, n=n)
    assert [one.name for one in maps] == [
        "encoder-block-1",
        "decoder-block-1",
        "cross-block-1",
        "decoder-block-2",
        "cross-block-2",
    ]
    names = {"boots": "Snow boots", "hat": "Top hat"}
    read = [f"{at} {names.get(history[at - 1], history[at - 1])}" for at in positions]
    generated = Recommender(generative_bundle).generate([history], n=n)["item_id"]
    steps = [f"+{step} {names.get(item, item)}" for step, item in enumerate(generated, 1)]
    assert len(steps) == min(n, left)
    for one in maps:
        expected = {
            "encoder": (read, read),
            "decoder": (steps, ["begin", *steps[:-1]]),
            "cross": (steps, read),
        }
        assert (one.rows, one.columns) == expected[one.kind]
        assert one.weights.shape == (2, len(one.rows), len(one.columns))
        assert one.weights.sum(axis=-1) == pytest.approx(1, abs=1e-5)
        assert one.causal == (one.kind == "decoder")
        assert one.causal <= (np.triu(one.weights, 1) == 0).all()
    assert maps[0].weights.all(), "the encoder sees what comes later, too"
    for one, first in zip(maps[1:], inspect(generative_bundle, history, n=1)[1:], strict=True):
        assert one.weights[:, :1, :1] == pytest.approx(first.weights[:, :1, :1], abs=1e-5)


def test_the_ten_best_are_the_candidates_unless_others_are_given(tiny_bundle: ModelBundle) -> None:
    history = ["hat", "boots"]
    attention = inspect(tiny_bundle, history)[-1]
    best = Recommender(tiny_bundle).recommend([history], k=5)["item_id"]  # the catalogue is of 5
    assert attention.rows == [f"{rank} {item}" for rank, item in enumerate(best, 1)]


def test_the_dot_product_has_the_maps_of_its_encoder(tiny_dot_bundle: ModelBundle) -> None:
    (attention,) = inspect(tiny_dot_bundle, ["unheard of", "socks"])
    assert attention.rows == ["2 socks"], "positions count skipped items"
    assert (attention.weights == 1).all()


def test_a_masked_item_model_attends_to_the_next_item_too(
    tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    config = MaskedItemConfig(
        kind="masked_item", embedding_dim=8, num_blocks=2, max_sequence_length=3
    )
    bundle = write_bundle(tmp_path / "masked", tiny_dataset, config)
    maps = inspect(bundle, ["socks", "hat", "boots", "jacket"])
    assert [one.name for one in maps] == ["encoder-block-1", "encoder-block-2"]
    for one in maps:
        assert one.rows == one.columns == ["2 Top hat", "3 Snow boots", "4 jacket", "the next one"]
        assert not one.causal
        assert one.weights.all()
        assert one.weights.sum(axis=-1) == pytest.approx(1, abs=1e-5)


def test_a_recording_ends_with_its_block(tiny_bundle: ModelBundle) -> None:
    model, inputs = tiny_bundle.model, ModelInputs(torch.tensor([[1, 2]]), torch.tensor([2]))
    assert isinstance(model, NextItemModel)
    with torch.inference_mode():
        with record_attention(model) as recorded:
            model(inputs)
        assert list(recorded) == ["encoder.blocks.0.attention"]
        recorded.clear()
        model(inputs)
    assert not recorded


@given(count=st.integers(1, 6))
def test_older_purchases_are_summed_up(count: int) -> None:
    labels = [f"{place} x" for place in range(1, 6)]
    weights = np.tril(np.random.default_rng(0).random((2, 5, 5)).astype(np.float32))
    weights /= weights.sum(axis=-1, keepdims=True)
    encoder = AttentionMap("encoder", weights, labels, labels, ["head 1", "head 2"], 1, causal=True)
    short = encoder.latest(count)
    if count >= 5:
        assert short is encoder
        return
    assert short.rows == labels[-count:]
    assert short.columns == [f"the {5 - count} before", *labels[-count:]]
    assert short.weights[..., 1:].tolist() == weights[:, -count:, -count:].tolist()
    assert short.weights.sum(axis=-1) == pytest.approx(1, abs=1e-6)
    cross = AttentionMap("cross", weights, labels, labels, ["head 1", "head 2"], 1)
    assert cross.latest(count).rows == labels, "generated items are all kept"
    decoder = AttentionMap("decoder", weights, labels, labels, ["head 1", "head 2"], 1)
    assert decoder.latest(count) is decoder


def test_models_without_attention_and_impossible_maps_are_refused(
    tiny_bundle: ModelBundle,
    tiny_dot_bundle: ModelBundle,
    generative_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    tmp_path: Path,
) -> None:
    machine = write_bundle(
        tmp_path / "fm", tiny_dataset, FactorisationMachineConfig(kind="factorisation_machine")
    )
    with pytest.raises(InputError, match="fm: its model has no attention to look at"):
        inspect(machine, ["hat"])
    with pytest.raises(InputError, match="dot: has no target attention that items"):
        inspect(tiny_dot_bundle, ["hat"], items=["boots"])
    with pytest.raises(InputError, match="ta: has no decoder that could generate n=3 purchases"):
        inspect(tiny_bundle, ["hat"], n=3)
    with pytest.raises(InputError, match="n=6: this model generates 1 to 5 purchases"):
        inspect(generative_bundle, ["hat"], n=6)
    with pytest.raises(InputError, match="item 'boot' is not in the catalogue; .* 'boots'"):
        inspect(tiny_bundle, ["hat"], items=["boot"])
    with pytest.raises(InputError, match="none of its items is in the catalogue"):
        inspect(tiny_bundle, ["unheard of"])
    with pytest.raises(InputError, match="no item is left to recommend"):
        inspect(tiny_bundle, ITEMS)
    with pytest.raises(InputError, match="no item is left to generate"):
        inspect(generative_bundle, ITEMS)
