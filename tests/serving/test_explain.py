"""Explanations: parts that add up to the score."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys.baselines.transitions import MARKOV_CHAIN
from recsys.baselines.tuned import BASELINES
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.model.heads import TargetAttentionHead
from recsys.serving.bundle import ModelBundle
from recsys.serving.explain import explain_items
from recsys.serving.recommender import Recommender

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]


def explained(bundle: ModelBundle, history: list[str], item: str) -> pl.DataFrame:
    (parts,) = explain_items(bundle, Recommender(bundle).read_histories([history]), [item])
    return parts


@given(
    history=st.lists(st.sampled_from([*ITEMS, "unheard of"]), max_size=8),
    item=st.sampled_from(ITEMS),
)
def test_contributions_and_dot_product_add_up_to_the_score(
    tiny_bundle: ModelBundle, history: list[str], item: str
) -> None:
    known = [i for i, bought in enumerate(history) if bought != "unheard of"]
    if not known:
        return
    parts = explained(tiny_bundle, history, item)
    score = Recommender(tiny_bundle).score([history], [item])["score"].item()
    assert parts["contribution"].sum() + parts["rest"][0] == pytest.approx(score, abs=1e-5)
    assert parts["share"].abs().sum() == pytest.approx(1, abs=1e-5)
    assert parts["position"].to_list() == known[-3:]
    assert parts["item_id"].to_list() == [history[position] for position in known[-3:]]


def test_a_single_purchase_has_all_the_attention(tiny_bundle: ModelBundle) -> None:
    # Its weight is 1 in every head, so its contribution is W_u e · W_v norm(m).
    model = tiny_bundle.model
    head = model.head
    assert isinstance(head, TargetAttentionHead)
    parts = explained(tiny_bundle, ["boots"], "hat")
    with torch.inference_mode():
        source = head.kv_norm(model.items.weight[1] * 8**0.5)
        expected = head.value_query(model.items.weight[3]) @ head.value(source)
    assert parts["contribution"].item() == pytest.approx(expected.item(), abs=1e-5)
    assert abs(parts["share"].item()) == 1


@given(history=st.lists(st.sampled_from(ITEMS), min_size=1, max_size=3))
def test_a_dot_product_is_explained_by_removal(
    tiny_dot_bundle: ModelBundle, history: list[str]
) -> None:
    parts = explained(tiny_dot_bundle, history, "hat")
    assert parts["item_id"].to_list() == history
    recommender = Recommender(tiny_dot_bundle)
    assert recommender.explain({"zoe": history}, "hat").sort("position").equals(parts)
    score = recommender.score([history], ["hat"])["score"].item()
    assert parts["contribution"].sum() + parts["rest"][0] == pytest.approx(score, abs=1e-5)
    for place, lost in enumerate(parts["contribution"]):
        shorter = history[:place] + history[place + 1 :]
        if shorter:
            without = recommender.score([shorter], ["hat"])["score"].item()
            assert lost == pytest.approx(score - without, abs=1e-5)


def test_a_baseline_is_explained_by_removal(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    chain = BASELINES["markov"].fit(tiny_dataset, "test", MARKOV_CHAIN)
    bundle = replace(tiny_bundle, trained=None, baseline=chain)
    parts = explained(bundle, ["boots", "gloves"], "hat")
    with_last = Recommender(bundle).score([["boots", "gloves"]], ["hat"])["score"].item()
    without = Recommender(bundle).score([["boots"]], ["hat"])["score"].item()
    assert parts["contribution"].to_list() == pytest.approx([0, with_last - without])
    often = BASELINES["personal_frequency"].fit(tiny_dataset, "test", None)
    bundle = replace(tiny_bundle, trained=None, baseline=often)
    long = ["boots"] * 5 + ["hat"] * 200  # the parts are of the newest
    parts = explained(bundle, long, "boots")
    score = Recommender(bundle).score([long], ["boots"])["score"].item()
    assert parts["contribution"].sum() + parts["rest"][0] == pytest.approx(score)


def test_impossible_explanations_are_refused(tiny_bundle: ModelBundle) -> None:
    with pytest.raises(InputError, match="item 'boot' is not in the catalogue"):
        explained(tiny_bundle, ["boots"], "boot")
    with pytest.raises(InputError, match="none of its items is in the catalogue"):
        explained(tiny_bundle, ["unheard of"], "hat")
    with pytest.raises(InputError, match="history: a list of ids, not 'boots'"):
        Recommender(tiny_bundle).explain("boots", "hat")
    with pytest.raises(InputError, match="users: a list of ids, not 7"):
        Recommender(tiny_bundle).recommend(users=7)  # type: ignore[arg-type]
