"""Two stages: retrieved items are ranked as in one stage, and no others are recommended."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.config import TargetAttention
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.search_metrics import retrieval_metrics
from recsys.inference.ranking import TwoStages, rank_targets, top_k
from recsys.inference.scorer import Scored, Seen
from recsys.model.models import ModelInputs
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.conftest import PURCHASES, tiny_experiment, tiny_model

Scores = list[list[int]]


def scored(rows: Scores) -> Scored:
    """A scorer of items 1 to I, for the users of these rows."""
    table = torch.tensor(rows, dtype=torch.float32)
    return Scored(torch.cat([torch.full((len(rows), 1), -math.inf), table], dim=1))


def two_stages(first: Scores, second: Scores, retrieve: int, seen: Seen = "filter") -> TwoStages:
    return TwoStages(scored(first), scored(second), retrieve, seen)


def test_retrieved_items_have_the_rankers_scores_and_others_none() -> None:
    stages = two_stages([[9, 8, 7, 6], [1, 2, 3, 4]], [[1, 2, 30, 40], [10, 20, 3, 4]], 2)
    never = -math.inf
    histories = Histories.from_lists([[], []])
    assert stages.score(histories).tolist() == [[never, 1, 2, never, never], [never] * 3 + [3, 4]]
    own = stages.score(histories, np.array([[2, 3], [4, 0]], dtype=np.int32))
    assert own.tolist() == [[2, never], [4, never]]
    assert stages.num_items == 4


@st.composite
def cases(draw: st.DrawFn) -> tuple[Scores, Scores, list[list[int]], list[int]]:
    """Two tables of scores with many ties, histories and targets."""
    users, items = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    row = st.lists(st.integers(-2, 2), min_size=items, max_size=items)
    table = st.lists(row, min_size=users, max_size=users)
    token = st.integers(1, items)
    histories = st.lists(st.lists(token, max_size=5), min_size=users, max_size=users)
    targets = st.lists(token, min_size=users, max_size=users)
    return draw(table), draw(table), draw(histories), draw(targets)


@given(case=cases(), retrieve=st.integers(1, 10), seen=st.sampled_from(["filter", "allow"]))
def test_lists_and_ranks_are_those_of_plain_sorting(
    case: tuple[Scores, Scores, list[list[int]], list[int]], retrieve: int, seen: Seen
) -> None:
    first, second, lists, targets = case
    num_items = len(first[0])
    stages, histories = two_stages(first, second, retrieve, seen), Histories.from_lists(lists)
    found, _ = top_k(stages, histories, num_items, seen)
    for user, items in enumerate(lists):
        left = [i for i in range(1, num_items + 1) if seen == "allow" or i not in items]
        kept = sorted(left, key=lambda i: (-first[user][i - 1], i))[:retrieve]
        best = sorted(kept, key=lambda i: (-second[user][i - 1], i))
        assert [i for i in found[user].tolist() if i] == best
    if retrieve >= num_items:
        tokens = np.array(targets, dtype=np.int32)
        one, two = (rank_targets(s, histories, tokens, seen) for s in (scored(second), stages))
        assert one.tolist() == two.tolist()


def test_retrieving_no_item_is_refused() -> None:
    with pytest.raises(InputError, match="retrieve=0: must be at least 1"):
        two_stages([[1]], [[1]], 0)


def test_metrics_of_each_size_by_hand() -> None:
    """Four items, one user each with target 1, which the retriever ranks 2 and 4.

    The ranker ranks it 1 and 2.
    """
    first, second = [[3, 4, 2, 1], [1, 4, 3, 2]], [[9, 1, 1, 1], [8, 1, 1, 9]]
    users, targets = np.arange(2), np.array([1, 1], dtype=np.int32)
    known = Histories.from_lists([[], []])
    holdout = Holdout(users, targets, users, users, known, dropped=0)
    sizes = [3, 1, 2, 2, 9]
    rows = retrieval_metrics(scored(first), scored(second), holdout, "test", "filter", sizes)
    assert [row.retrieve for row in rows] == [1, 2, 3, 4]
    assert [row.retrieved for row in rows] == [0, 0.5, 0.5, 1]
    assert [row.recall_at_10 for row in rows] == [0, 0.5, 0.5, 1]
    second_place = 1 / math.log2(3)
    expected = [0, 0.5, 0.5, (1 + second_place) / 2]
    assert [row.ndcg_at_10 for row in rows] == pytest.approx(expected)
    assert all(row.seconds > 0 for row in rows)


@pytest.fixture(scope="module")
def counting_bundle(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    """Target attention, and counts that outweigh it."""
    experiment = tiny_experiment(TargetAttention(num_heads=2, head_dim=4))
    counts = PCTM.fit(tiny_dataset.histories("test"), tiny_dataset.num_items, PCTMSettings())
    return ModelBundle.write(
        tmp_path_factory.mktemp("bundle") / "counting",
        tiny_model(experiment, tiny_dataset.num_items),
        experiment,
        tiny_dataset,
        ("train",),
        count_ensemble=CountEnsemble(counts, 20.0),
    )


@pytest.mark.parametrize("fixture", ["tiny_bundle", "counting_bundle"])
@pytest.mark.parametrize("seen", ["filter", "allow"])
@pytest.mark.parametrize("retrieve", [5, 1000])
def test_retrieving_the_catalogue_is_ranking_it(
    fixture: str, seen: Seen, retrieve: int, request: pytest.FixtureRequest
) -> None:
    recommender = Recommender(request.getfixturevalue(fixture))
    histories = {**PURCHASES, "new": [], "long": ["hat", "boots"] * 9}
    one = recommender.recommend(histories, k=5, seen=seen)
    two = recommender.recommend(histories, k=5, seen=seen, retrieve=retrieve)
    assert_frame_equal(two, one, abs_tol=1e-5)
    assert set(two["source"]) == {"model", "popularity"}


def test_the_dot_product_and_the_counts_retrieve(counting_bundle: ModelBundle) -> None:
    model, count_ensemble = counting_bundle.model, counting_bundle.count_ensemble
    assert count_ensemble is not None
    history = Histories.from_lists([[2, 1]])
    counted = 20 * count_ensemble.counts.score(history)[0]
    assert len(set(counted.tolist())) > 2, "the counts say something"
    with torch.inference_mode():
        states = model(ModelInputs(torch.tensor([[2, 1]]), torch.tensor([2])))[0]
        expected = states[0, -1] @ model.items.weight.T + counted
    found = counting_bundle.retriever.score(history)[0]
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_two_stages_without_target_attention_are_refused(
    tiny_bundle: ModelBundle, tiny_dot_bundle: ModelBundle
) -> None:
    with pytest.raises(InputError, match="retrieve=2: must be at least k=3"):
        Recommender(tiny_bundle).recommend([["hat"]], k=3, retrieve=2)
    with pytest.raises(InputError, match="two stages need target attention, and dot_product"):
        Recommender(tiny_dot_bundle).recommend([["hat"]], k=3, retrieve=4)
    with pytest.raises(InputError, match="k=6: must be from 1 to 5"):
        Recommender(tiny_bundle).recommend([["hat"]], k=6, retrieve=8)
