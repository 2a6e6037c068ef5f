"""Ranks and best items, against hand-computed values and brute force."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.evaluation.metrics import metric_values
from recsys.inference import scorer as scorer_module
from recsys.inference.ranking import NEVER, Ties, rank_targets, top_k
from recsys.inference.scorer import Scored, Seen


@dataclass
class TableScorer:
    """Scores user b, counted over all calls, by row b of a table [Q, I]."""

    table: NDArray[np.float32]
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


def targets(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, dtype=np.int32)


NOTHING = Histories.from_lists([[]])
SMALL = st.integers(1, 6)


Case = tuple[NDArray[np.float32], Histories, NDArray[np.int32]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Scores with many ties, histories and targets."""
    users, items = draw(SMALL), draw(st.integers(2, 8))
    scores = draw(
        st.lists(
            st.lists(st.integers(-3, 3), min_size=items, max_size=items),
            min_size=users,
            max_size=users,
        )
    )
    token = st.integers(1, items)
    histories = [draw(st.lists(token, max_size=5)) for _ in range(users)]
    wanted = [draw(token) for _ in range(users)]
    return np.array(scores, dtype=np.float32), Histories.from_lists(histories), targets(*wanted)


def brute_force(
    scores: NDArray[np.float32], history: list[int], target: int, seen: Seen, ties: Ties
) -> int:
    """The rank of the target in a sorted list of the items that may be recommended."""
    items = [i for i in range(1, len(scores) + 1) if seen == "allow" or i not in history]
    if target not in items:
        return NEVER
    last = [i == target if ties == "against_target" else False for i in range(len(scores) + 1)]
    return 1 + sorted(items, key=lambda i: (-scores[i - 1], last[i], i)).index(target)


@pytest.mark.parametrize("ties", ["against_target", "item_id"])
def test_a_target_that_cannot_be_recommended_is_credited_by_no_metric(ties: Ties) -> None:
    repeat, ruled_out = Histories.from_lists([[2]]), table([1, -np.inf, 1])
    for ranks in (
        rank_targets(table([1, 9, 1]), repeat, targets(2), "filter", ties),
        rank_targets(ruled_out, NOTHING, targets(2), "allow", ties),
    ):
        assert ranks.tolist() == [NEVER]
        # Not even by those that look beyond the end of a catalogue of three items.
        for metric in ("recall_at_100", "hit_rate_at_100", "ndcg_at_100", "map_at_9999999999"):
            assert metric_values(ranks, metric).tolist() == [0]
        assert metric_values(ranks, "mrr").tolist() == [0]


def test_scores_too_close_for_bf16_do_not_tie() -> None:
    scores = table([1.0, 1.0 + 2**-20])
    assert rank_targets(scores, NOTHING, targets(2), "allow").tolist() == [1]


@given(
    cases(), st.sampled_from(["filter", "allow"]), st.sampled_from(["against_target", "item_id"])
)
def test_ranks_equal_brute_force(case: Case, seen: Seen, ties: Ties) -> None:
    scores, histories, wanted = case
    expected = [
        brute_force(scores[b], histories[b : b + 1].items.tolist(), wanted[b], seen, ties)
        for b in range(len(wanted))
    ]
    assert rank_targets(TableScorer(scores), histories, wanted, seen, ties).tolist() == expected


@given(cases(), st.sampled_from(["filter", "allow"]))
def test_top_k_is_the_sorted_catalogue(case: Case, seen: Seen) -> None:
    scores, histories, wanted = case
    for k in range(1, scores.shape[1] + 1):
        items, values = top_k(TableScorer(scores), histories, k, seen)
        for b in range(len(wanted)):
            gone = histories[b : b + 1].items.tolist() if seen == "filter" else []
            order = sorted(range(1, scores.shape[1] + 1), key=lambda i: (-scores[b, i - 1], i))
            expected = [i for i in order if i not in gone][:k]
            padding = k - len(expected)
            assert items[b].tolist() == expected + [0] * padding
            assert values[b].tolist() == [scores[b, i - 1] for i in expected] + [-np.inf] * padding


def test_many_batches_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    scores = generator.integers(0, 5, (23, 9)).astype(np.float32)
    histories = Histories.from_lists([generator.integers(1, 10, b % 4).tolist() for b in range(23)])
    wanted = generator.integers(1, 10, 23).astype(np.int32)
    one = rank_targets(TableScorer(scores), histories, wanted, "filter")
    best, values = top_k(TableScorer(scores), histories, 4, "filter")
    monkeypatch.setattr(scorer_module, "ELEMENTS_PER_BATCH", 47)
    monkeypatch.setattr(scorer_module, "FEWEST_USERS", 1)
    batched = TableScorer(scores)
    assert rank_targets(batched, histories, wanted, "filter").tolist() == one.tolist()
    assert batched.calls == [4, 4, 4, 4, 4, 3]
    again, again_values = top_k(TableScorer(scores), histories, 4, "filter")
    assert again.tolist() == best.tolist()
    assert again_values.tolist() == values.tolist()


def test_no_users() -> None:
    no_users = Histories.from_lists([])
    assert rank_targets(table([1.0, 2.0]), no_users, targets(), "filter").shape == (0,)
    assert top_k(table([1.0, 2.0]), no_users, 2, "filter")[0].shape == (0, 2)


def test_nan_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"TableScorer\.score gave NaN"):
        rank_targets(table([1, np.nan]), NOTHING, targets(1), "allow")


def test_reduced_precision_is_an_error() -> None:
    class Half(TableScorer):
        def score(
            self, histories: Histories, candidates: NDArray[np.int32] | None = None
        ) -> torch.Tensor:
            return super().score(histories).bfloat16()

    with pytest.raises(ValueError, match=r"torch\.bfloat16"):
        rank_targets(Half(np.ones((1, 2), np.float32)), NOTHING, targets(1), "allow")


@pytest.mark.parametrize("wrong", [0, 3])
def test_targets_outside_the_catalogue_are_an_error(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to 2, not {wrong}"):
        rank_targets(table([1, 2]), NOTHING, targets(wrong), "allow")


def test_targets_and_histories_must_pair_up() -> None:
    with pytest.raises(ValueError, match="1 histories need as many targets"):
        rank_targets(table([1, 2]), NOTHING, targets(1, 2), "allow")


@pytest.mark.parametrize("k", [0, 4])
def test_k_outside_the_catalogue_names_both(k: int) -> None:
    with pytest.raises(InputError, match=f"k={k}: must be from 1 to 3"):
        top_k(table([1, 2, 3]), NOTHING, k, "allow")


@given(cases(), st.sampled_from(["filter", "allow"]), st.data())
def test_targets_that_share_a_history_rank_as_if_each_had_its_own(
    case: Case, seen: Seen, data: st.DataObject
) -> None:
    scores, histories, _ = case
    of = data.draw(
        st.lists(st.integers(0, len(histories) - 1), min_size=1, max_size=12).map(sorted)
    )
    rows, items = np.array(of), st.integers(1, scores.shape[1])
    wanted = targets(*(data.draw(items) for _ in of))
    shared = TableScorer(scores)
    ranks = rank_targets(shared, histories, wanted, seen, rows=rows)
    assert sum(shared.calls) == len(histories)  # each is scored once
    own = rank_targets(TableScorer(scores[rows]), histories.take(rows), wanted, seen)
    assert ranks.tolist() == own.tolist()


@given(cases(), st.sampled_from(["filter", "allow"]))
def test_best_items_leave_the_scores_as_they_were(case: Case, seen: Seen) -> None:
    """Seen items are excluded in the scorer's own matrix and restored after that."""
    scores, histories, wanted = case
    padded = torch.from_numpy(np.pad(scores, ((0, 0), (1, 0)), constant_values=-np.inf))
    scored, before = Scored(padded), padded.clone()
    first, _ = top_k(scored, histories, 1, seen)
    assert torch.equal(padded, before)
    assert top_k(scored, histories, 1, seen)[0].tolist() == first.tolist()
    ranks = rank_targets(scored, histories, wanted, "allow")
    assert ranks.tolist() == rank_targets(Scored(before), histories, wanted, "allow").tolist()
