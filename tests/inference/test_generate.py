"""The next purchases of users in raw ids: which lists users get, and which requests are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import recsys
from recsys.config.experiment import Experiment
from recsys.config.model import SequenceToSequenceConfig
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.inference.model_scorer import generate_lists
from recsys.model.sequence_to_sequence import Beam, Sampling, SequenceToSequence, Strategy
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.helpers.random_models import random_bundle


@pytest.fixture(scope="module")
def generating(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Recommender:
    config = SequenceToSequenceConfig(
        kind="sequence_to_sequence",
        embedding_dim=8,
        feed_forward_dim=16,
        num_encoder_blocks=1,
        num_decoder_blocks=1,
        max_sequence_length=3,
        max_generated=5,
    )
    folder = tmp_path_factory.mktemp("generating") / "bundle"
    random_bundle(folder, Experiment(model=config), tiny_dataset, std=0.7)
    return recsys.load(folder, tiny_dataset)


def lists(generating: Recommender, histories: list[list[str]], **how: object) -> list[list[str]]:
    answer = generating.generate(histories, **how)  # type: ignore[arg-type]
    of = dict(answer.group_by("user_id").agg("item_id").iter_rows())
    return [of.get(user, []) for user in range(len(histories))]


def test_lists_are_in_order_and_exclude_seen_items(generating: Recommender) -> None:
    answer = generating.generate({"ann": ["boots", "hat"], "new": ["unheard of"]}, n=3)
    assert answer.columns == ["user_id", "item_id", "step", "log_probability", "source"]
    ann, new = answer.partition_by("user_id", maintain_order=True)
    assert ann["step"].to_list() == [1, 2, 3]
    assert set(ann["item_id"]) == {"gloves", "jacket", "socks"}
    assert (ann["log_probability"].n_unique(), ann["log_probability"][0] < 0) == (1, True)
    assert set(ann["source"]) == {"model"}
    # Training has boots three times, the gloves, the hat and the jacket less, the socks once.
    assert new["item_id"][0] == "boots"
    assert set(new["source"]) == {"popularity"}
    assert new["log_probability"].null_count() == 3


def test_the_entire_history_is_excluded_not_only_what_the_model_reads(
    generating: Recommender,
) -> None:
    (only,) = lists(generating, [["socks", "boots", "gloves", "hat"]], n=5)
    assert only == ["jacket"], "where nothing is left the list ends"
    (allowed,) = lists(generating, [["socks", "boots", "gloves", "hat"]], n=5, seen="allow")
    assert sorted(allowed) == ["boots", "gloves", "hat", "jacket", "socks"]


@pytest.mark.parametrize(
    "strategy", [None, Beam(3), Sampling(torch.Generator().manual_seed(0), top_p=0.9)]
)
def test_candidates_and_repeats(generating: Recommender, strategy: Strategy | None) -> None:
    how = {"strategy": strategy, "candidates": ["hat", "socks"], "n": 3}
    found = lists(generating, [["boots"], ["hat"], ["nothing known"]], **how)
    assert sorted(found[0]) == ["hat", "socks"]
    assert found[1] == ["socks"]
    assert sorted(found[2]) == ["hat", "socks"]
    table = {"candidates": pl.DataFrame({"item_id": ["hat", "socks"]}), "repeats": True}
    (repeated,) = lists(generating, [["hat"]], **how | table)
    assert repeated == ["socks"] * 3


def test_the_first_step_is_the_first_of_the_ranking(generating: Recommender) -> None:
    histories = [["boots"], ["hat", "gloves"], ["jacket", "socks", "hat"]]
    best = generating.recommend(histories, k=1)["item_id"].to_list()
    assert [items[0] for items in lists(generating, histories, n=2)] == best


def test_what_cannot_be_generated_is_refused(
    generating: Recommender, tiny_bundle: ModelBundle, tmp_path: Path
) -> None:
    for n in (-1, 0, 6):
        with pytest.raises(InputError, match=f"n={n}: this model generates 1 to 5 purchases"):
            generating.generate([["hat"]], n=n)
    with pytest.raises(InputError, match="n=2.5: must be a whole number"):
        generating.generate([["hat"]], n=2.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="allowed item 'hatt' is not in the catalogue"):
        generating.generate([["hat"]], candidates=["hatt"])
    with pytest.raises(InputError, match="candidates: name at least one item"):
        generating.generate([["hat"]], candidates=[])
    with pytest.raises(InputError, match="kind next_item generates nothing"):
        Recommender(tiny_bundle).generate([["hat"]])
    model = generating.bundle.model
    assert isinstance(model, SequenceToSequence)
    with pytest.raises(ValueError, match="history 1 is empty"):
        generate_lists(
            model, 3, Histories(np.array([1], dtype=np.int32), np.array([0, 1, 1])), 2, "filter"
        )
