"""Ranks, best items and two stages, against hand-computed values and plain sorting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.config.model import TargetAttention
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.metrics import metric_values
from recsys.inference import ranking
from recsys.inference import scorer as scorer_module
from recsys.inference.ranking import NEVER, NotANumberError, TwoStages, rank_targets, top_k
from recsys.inference.scorer import Scored, Seen
from recsys.model.models import ModelInputs
from recsys.serving.bundle import ModelBundle
from tests.conftest import tiny_experiment
from tests.helpers.random_models import random_bundle

Scores = NDArray[np.float32]
SEEN = st.sampled_from(["filter", "allow"])
NOTHING = Histories.from_lists([[]])


@dataclass
class TableScorer:
    """Scores user b, counted over all calls, by row b of a table [Q, I]."""

    table: Scores
    calls: list[int] = field(default_factory=list)

    @property
    def num_items(self) -> int:
        return int(self.table.shape[1])

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        start = sum(self.calls)
        self.calls.append(len(histories))
        rows = self.table[start : start + len(histories)]
        # A scorer that forgets to rule PAD out must not get it recommended.
        return torch.from_numpy(np.pad(rows, ((0, 0), (1, 0)), constant_values=1e9))


def table(*rows: list[float]) -> TableScorer:
    return TableScorer(np.array(rows, dtype=np.float32))


def scored(scores: Scores | list[list[int]]) -> Scored:
    rows = np.asarray(scores, dtype=np.float32)
    return Scored(torch.from_numpy(np.pad(rows, ((0, 0), (1, 0)), constant_values=-np.inf)))


def targets(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, dtype=np.int32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Scores, Scores, Histories, NDArray[np.int32]]:
    """Two tables of scores with many ties, histories and targets."""
    users, items = draw(st.integers(1, 6)), draw(st.integers(2, 8))
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    levels = draw(st.integers(1, 5))
    first, second = generator.integers(-levels, levels, (2, users, items)).astype(np.float32)
    lengths = generator.integers(0, 6, users)
    histories = Histories.from_lists([generator.integers(1, items + 1, n) for n in lengths])
    return first, second, histories, generator.integers(1, items + 1, users).astype(np.int32)


def in_order(scores: Scores, user: int, histories: Histories, seen: Seen) -> list[int]:
    gone = histories[user : user + 1].items.tolist() if seen == "filter" else []
    items = [item for item in range(1, scores.shape[1] + 1) if item not in gone]
    return sorted(items, key=lambda item: (-scores[user, item - 1], item))


# --- Ranks ---------------------------------------------------------------------------------------


def test_a_target_that_cannot_be_recommended_is_credited_by_no_metric() -> None:
    repeat, ruled_out = Histories.from_lists([[2]]), table([1, -np.inf, 1])
    for ranks in (
        rank_targets(table([1, 9, 1]), repeat, targets(2), "filter"),
        rank_targets(ruled_out, NOTHING, targets(2), "allow"),
    ):
        assert ranks.tolist() == [NEVER]
        # Not even by those that look beyond the end of a catalogue of three items.
        for metric in ("recall_at_100", "hit_rate_at_100", "map_at_9999999999", "mrr"):
            assert metric_values(ranks, metric).tolist() == [0]


@given(cases(), SEEN)
def test_ranks_and_best_items_are_those_of_plain_sorting(
    case: tuple[Scores, Scores, Histories, NDArray[np.int32]], seen: Seen
) -> None:
    scores, _, histories, wanted = case
    ranks = rank_targets(TableScorer(scores), histories, wanted, seen)
    scorer = scored(scores)
    before = scorer.scores.clone()
    for user, target in enumerate(wanted.tolist()):
        order = in_order(scores, user, histories, seen)
        level = [i for i in order if scores[user, i - 1] >= scores[user, target - 1]]
        assert ranks[user] == (len(level) if target in order else NEVER)
        for k in range(1, scores.shape[1] + 1):
            items, values = top_k(scorer, histories, k, seen)
            best = order[:k] + [0] * (k - len(order))
            assert items[user].tolist() == best
            assert values[user].tolist() == [
                scores[user, item - 1] if item else -np.inf for item in best
            ]
    assert torch.equal(scorer.scores, before)
    some = rank_targets(TableScorer(scores), histories, wanted, "allow")
    assert some.tolist() == rank_targets(scorer, histories, wanted, "allow").tolist()


@given(cases(), SEEN, st.data())
def test_targets_that_share_a_history_rank_as_if_each_had_its_own(
    case: tuple[Scores, Scores, Histories, NDArray[np.int32]], seen: Seen, data: st.DataObject
) -> None:
    scores, _, histories, _ = case
    row = st.integers(0, len(histories) - 1)
    rows = np.array(data.draw(st.lists(row, min_size=1, max_size=12).map(sorted)))
    item = st.integers(1, scores.shape[1])
    wanted = targets(*(data.draw(item) for _ in rows))
    shared = TableScorer(scores)
    ranks = rank_targets(shared, histories, wanted, seen, rows=rows)
    assert sum(shared.calls) == len(histories)  # each is scored once
    own = rank_targets(TableScorer(scores[rows]), histories.take(rows), wanted, seen)
    assert ranks.tolist() == own.tolist()


def test_many_batches_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 5, (23, 9)).astype(np.float32)
    histories = Histories.from_lists([generator.integers(1, 10, b % 4).tolist() for b in range(23)])
    wanted = generator.integers(1, 10, 23).astype(np.int32)
    ranks = rank_targets(TableScorer(scores), histories, wanted, "filter")
    best, values = top_k(TableScorer(scores), histories, 4, "filter")
    monkeypatch.setattr(scorer_module, "ELEMENTS_PER_BATCH", 47)
    monkeypatch.setattr(scorer_module, "FEWEST_USERS", 1)
    batched = TableScorer(scores)
    assert rank_targets(batched, histories, wanted, "filter").tolist() == ranks.tolist()
    assert batched.calls == [4, 4, 4, 4, 4, 3]
    again, again_values = top_k(TableScorer(scores), histories, 4, "filter")
    assert again.tolist() == best.tolist()
    assert again_values.tolist() == values.tolist()


class Half(TableScorer):
    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        return super().score(histories).bfloat16()


@pytest.mark.parametrize(
    ("scorer", "wanted", "message"),
    [
        (table([1, np.nan]), targets(1), r"TableScorer\.score gave NaN"),
        (Half(np.ones((1, 2), np.float32)), targets(1), "not float32"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    scorer: TableScorer, wanted: NDArray[np.int32], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rank_targets(scorer, NOTHING, wanted, "allow")


@pytest.mark.parametrize("k", [0, 4])
def test_k_outside_the_catalogue_names_both(k: int) -> None:
    with pytest.raises(InputError, match=f"k={k}: must be from 1 to 3"):
        top_k(table([1, 2, 3]), NOTHING, k, "allow")


# --- The best of groups --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    users=st.integers(1, 4),
    items=st.integers(1, 500),
    k=st.integers(1, 20),
    levels=st.integers(1, 50),
    group=st.sampled_from([1, 3, 64]),
)
def test_the_best_of_groups_are_those_of_all_scores_sorted(
    seed: int, users: int, items: int, k: int, levels: int, group: int
) -> None:
    """With ties, both zeros, negative scores, -inf, and fewer items than are wanted."""
    rng, k = np.random.default_rng(seed), min(k, items)
    scores = rng.integers(-levels, levels, (users, items + 1)).astype(np.float32) / 4
    scores[scores == -levels / 4] = -np.inf
    scores[(scores == 0) & (rng.random(scores.shape) < 0.5)] = -0.0
    left_out = rng.random(scores.shape) < 0.1
    left_out[:, 0] = False  # PAD, which is always left out
    histories = Histories.from_lists([np.flatnonzero(row) for row in left_out])
    given = torch.from_numpy(scores.copy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_GROUP", group)
        found, values = top_k(Scored(given), histories, k, "filter")
    assert np.array_equal(given.numpy(), scores)
    scores[left_out], scores[:, 0] = -np.inf, -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    expected = np.take_along_axis(scores, order, axis=1)
    assert np.array_equal(values, expected)
    assert np.array_equal(found, np.where(np.isfinite(expected), order, 0))


@pytest.mark.parametrize("item", [1, 500, 1_000])
def test_a_score_that_is_not_a_number_is_refused(item: int) -> None:
    scores = torch.zeros(2, 1_001)
    scores[-1, item] = torch.nan
    with pytest.raises(NotANumberError, match="Scored.score gave NaN"):
        top_k(Scored(scores), Histories.from_lists([[], []]), 2, "allow")


# --- Two stages ----------------------------------------------------------------------------------


def test_retrieved_items_have_the_rankers_scores_and_others_none() -> None:
    first, second = [[9, 8, 7, 6], [1, 2, 3, 4]], [[1, 2, 30, 40], [10, 20, 3, 4]]
    stages, never = TwoStages(scored(first), scored(second), 2, "filter"), -math.inf
    histories = Histories.from_lists([[], []])
    assert stages.score(histories).tolist() == [[never, 1, 2, never, never], [never] * 3 + [3, 4]]
    own = stages.score(histories, np.array([[2, 3], [4, 0]], dtype=np.int32))
    assert own.tolist() == [[2, never], [4, never]]


@given(cases(), st.integers(1, 10), SEEN)
def test_two_stages_sort_twice(
    case: tuple[Scores, Scores, Histories, NDArray[np.int32]], retrieve: int, seen: Seen
) -> None:
    first, second, histories, wanted = case
    stages = TwoStages(scored(first), scored(second), retrieve, seen)
    found, _ = top_k(stages, histories, first.shape[1], seen)
    for user in range(len(histories)):
        kept = in_order(first, user, histories, seen)[:retrieve]
        best = [item for item in in_order(second, user, histories, seen) if item in kept]
        assert [item for item in found[user].tolist() if item] == best
    if retrieve >= first.shape[1]:
        one, two = (rank_targets(s, histories, wanted, seen) for s in (scored(second), stages))
        assert one.tolist() == two.tolist()


@pytest.fixture(scope="module")
def counting_bundle(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    experiment = tiny_experiment(TargetAttention(num_heads=2, head_dim=4))
    counts = PCTM.fit(tiny_dataset.histories("test"), tiny_dataset.num_items, PCTMSettings())
    path = tmp_path_factory.mktemp("bundle") / "counting"
    ensemble = CountEnsemble(counts, 20.0)
    return random_bundle(path, experiment, tiny_dataset, count_ensemble=ensemble)


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
