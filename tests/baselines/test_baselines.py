"""The count models: by hand on small logs, as scorers, and saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from recsys.baselines.counts import PersonalFrequency, Popularity, RepeatLast, transitions
from recsys.baselines.neighbours import (
    EASE,
    EASESettings,
    ItemKNN,
    ItemKNNSettings,
    MatrixFactorisation,
    MatrixFactorisationSettings,
)
from recsys.baselines.saved import load_baseline, save_counts
from recsys.baselines.transitions import (
    MARKOV_CHAIN,
    PCTM,
    PCTMSettings,
    SequentialRules,
    SequentialRulesSettings,
)
from recsys.baselines.tuned import BASELINES
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.inference.scorer import Scorer

LOG = Histories.from_lists([[1, 2, 3], [1, 2, 2], [3], [2, 3, 1, 2]])
FITS: list[Callable[[Histories, int], Scorer]] = [
    Popularity.fit,
    partial(SequentialRules.fit, settings=MARKOV_CHAIN),
    partial(SequentialRules.fit, settings=SequentialRulesSettings()),
    partial(PCTM.fit, settings=PCTMSettings()),
    partial(ItemKNN.fit, settings=ItemKNNSettings()),
    partial(EASE.fit, settings=EASESettings()),
    partial(MatrixFactorisation.fit, settings=MatrixFactorisationSettings()),
]
"""The models that need a training log."""
each_model = pytest.mark.parametrize("fit", [*FITS, PersonalFrequency.fit, RepeatLast.fit])
queries_drawn = st.lists(st.lists(st.integers(1, 6), max_size=8), min_size=1, max_size=6)
logs = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=8), min_size=1, max_size=6)


def test_markov_chain_reads_the_last_item() -> None:
    scores = SequentialRules.fit(LOG, 4, MARKOV_CHAIN).score(
        Histories.from_lists([[3, 2], [2, 1], [4]])
    )
    # 2 was followed by 3, 2 and 3; 1 by 2, three times; 4 by nothing.
    assert scores[:, 1:].tolist() == [[0, 1, 2, 0], [0, 3, 0, 0], [0, 0, 0, 0]]


@given(logs, st.integers(1, 10))
def test_transitions_equal_the_plain_definition(lists: list[list[int]], window: int) -> None:
    weights = 1.0 / np.arange(1, window + 1)
    expected = np.zeros((7, 7))
    for history in lists:
        for i, source in enumerate(history):
            for distance, follower in enumerate(history[i + 1 : i + 1 + window], start=1):
                expected[source, follower] += weights[distance - 1]
    counted = transitions(Histories.from_lists(lists), 6, weights)
    np.testing.assert_allclose(counted.toarray(), expected, rtol=1e-12)


def test_pctm_by_hand() -> None:
    settings = PCTMSettings(
        window=2,
        distance_power=1.0,
        prior=0.5,
        history_length=3,
        recent=2,
        recent_decay=0.5,
        recent_mass=0.6,
        popularity=-0.3,
    )
    train = Histories.from_lists([[1, 2, 3], [1, 3]])
    scores = PCTM.fit(train, 3, settings).score(Histories.from_lists([[3, 2, 1], [3, 2, 1, 1]]))
    # C[1, 2] = 1, C[1, 3] = 1/2 + 1, C[2, 3] = 1; two 1s, one 2, two 3s, plus one of each, of 8.
    e12, e13, e23 = np.log(1 + 1 / 0.5), np.log(1 + 1.5 / 0.5), np.log(1 + 1 / 0.5)
    background = -0.3 * np.log(np.array([3, 2, 3]) / 8)
    # The newest two share .6 as 2 to 1; older items share .4; the fourth newest is not read.
    first = background + np.array([0, 0.4 * e12, 0.4 * e13 + 0.2 * e23])
    second = background + np.array([0, 0.6 * e12, 0.6 * e13 + 0.4 * e23])
    np.testing.assert_allclose(scores[:, 1:].numpy(), [first, second], rtol=1e-6)


def test_pctm_weights_of_short_histories_sum_to_one_and_repeats_are_added() -> None:
    # One pair only, C = 1: with the whole weight on item 1, the score of item 2 is log 2.
    settings = PCTMSettings(recent=7, recent_mass=0.3, repeats=0.5)
    model = PCTM.fit(Histories.from_lists([[1, 2]]), 2, settings)
    scores = model.score(Histories.from_lists([[1], [1, 1, 1]]))
    np.testing.assert_allclose(scores[:, 2].numpy(), np.log(2), rtol=1e-6)
    np.testing.assert_allclose(scores[:, 1].numpy(), 0.5 * np.log([2, 4]), rtol=1e-6)


@each_model
def test_scores_keep_the_contract_of_a_scorer(fit: Callable[[Histories, int], Scorer]) -> None:
    model = fit(LOG, 5)
    queries = Histories.from_lists([[1, 2], [], [5], [3, 3, 1]])
    scores = model.score(queries)
    assert model.num_items == 5
    assert scores.dtype == torch.float32
    assert scores.shape == (4, 6)
    assert bool((scores[:, 0] == -np.inf).all())
    assert bool(scores[:, 1:].isfinite().all())
    alone = torch.cat([model.score(queries[b : b + 1]) for b in range(len(queries))])
    np.testing.assert_allclose(scores, alone, rtol=1e-6, atol=1e-9)
    assert scores[1].argsort(descending=True, stable=True)[:4].tolist() == [2, 1, 3, 4]


@each_model
@given(log=logs, queries=queries_drawn, seed=st.integers(0, 99))
def test_few_candidates_have_the_scores_of_the_catalogue(
    fit: Callable[[Histories, int], Scorer],
    log: list[list[int]],
    queries: list[list[int]],
    seed: int,
) -> None:
    model, histories = fit(Histories.from_lists(log), 60), Histories.from_lists(queries)
    rng = np.random.default_rng(seed)
    catalogue = model.score(histories)
    for width in (0, 1, 3, 60):  # looked up, or picked from all items
        candidates = rng.integers(0, 8, (len(histories), width)).astype(np.int32)
        expected = catalogue.gather(1, torch.from_numpy(candidates.astype(np.int64)))
        np.testing.assert_allclose(model.score(histories, candidates), expected, 1e-6, 1e-9)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (PersonalFrequency, [[1.3, 0.5, 0.3, 2], [0.3, 0.5, 0.3, 0], [1.3, 0.5, 1.3, 0]]),
        (RepeatLast, [[2, 0.5, 0.3, 3], [0.3, 0.5, 0.3, 0], [2, 0.5, 1, 0]]),
    ],
)
def test_own_purchases_by_hand(kind: type[PersonalFrequency], expected: list[list[float]]) -> None:
    # Popularity: item 2 five times, 1 and 3 three times, 4 never.
    scores = kind.fit(LOG, 4).score(Histories.from_lists([[4, 1, 4], [], [3, 1]]))
    np.testing.assert_allclose(scores[:, 1:], expected, rtol=1e-6)


def test_sequential_rules_by_hand() -> None:
    settings = SequentialRulesSettings(
        window=2, distance="reciprocal", best=1, history_length=2, history_power=1.0
    )
    train = Histories.from_lists([[1, 2, 3], [1, 3], [2, 1]])
    # R[1]: 2 once at distance 1, 3 at distances 2 and 1: 1 and 3/2; R[2]: 3 and 1, once each, of
    # which the smaller stays. So 1 -> 3 with 3/2 and 2 -> 1 with 1.
    scores = SequentialRules.fit(train, 3, settings).score(
        Histories.from_lists([[2, 1], [1, 2, 3], [1, 1]])
    )
    expected = [[0.5, 0, 1.5], [0.5, 0, 0], [0, 0, 2.25]]
    np.testing.assert_allclose(scores[:, 1:], expected, rtol=1e-6)


def test_the_strongest_rules_of_an_item_stay_and_the_smaller_tokens_of_equal_ones() -> None:
    rng = np.random.default_rng(0)
    train = Histories.from_lists(rng.integers(1, 30, size=(200, 12)).tolist())
    pruned, whole = (
        SequentialRules.fit(train, 29, SequentialRulesSettings(best=best)).rules.toarray()
        for best in (7, None)
    )
    for row, rules in zip(pruned[1:], whole[1:], strict=True):
        strength = rules.astype(np.float32)
        strongest = sorted(np.flatnonzero(rules), key=lambda item: (-strength[item], item))[:7]
        assert sorted(strongest) == np.flatnonzero(row).tolist()
        np.testing.assert_array_equal(row[strongest], rules[strongest])


def test_rules_of_rare_items_weigh_more() -> None:
    # Of four users 4, 2 and 1 have items 1, 2 and 3: log 4/n is 0, log 2 and log 4.
    train = Histories.from_lists([[1, 2], [2, 1], [1], [3, 1]])
    model = SequentialRules.fit(train, 3, SequentialRulesSettings(window=1, rarity=True))
    scores = model.score(Histories.from_lists([[1], [2], [3]])) * np.log10(2.7)
    np.testing.assert_allclose(scores[:, 1], [0, 0.5, 1], atol=1e-6)


def test_item_knn_by_hand() -> None:
    # Users of 1: a, b; of 2: a, b, d; of 3: a, c, d. cos(1, 2) = 2/√6, (1, 3) = 1/√6, (2, 3) = 2/3.
    train = Histories.from_lists([[1, 2, 3], [1, 2, 2], [3], [2, 3]])
    settings = ItemKNNSettings(neighbours=4, decay=0.5)
    scores = ItemKNN.fit(train, 4, settings).score(Histories.from_lists([[3, 1], [2]]))
    a, b, c = 2 / np.sqrt(6), 1 / np.sqrt(6), 2 / 3
    expected = np.array([[0.5 * b, a + 0.5 * c, b, 0], [a, 0, c, 0]])
    np.testing.assert_allclose(scores[:, 1:], expected, rtol=1e-6, atol=1e-7)
    nearest = ItemKNN.fit(train, 4, ItemKNNSettings(neighbours=1, decay=0.0))
    scores = nearest.score(Histories.from_lists([[3, 1], [2]]))
    np.testing.assert_allclose(scores[:, 1:], [[0, a, 0, 0], [a, 0, 0, 0]], rtol=1e-6, atol=1e-7)


@given(logs, st.floats(0.5, 100))
def test_ease_is_a_ridge_regression_of_each_item_on_the_others(
    log: list[list[int]], l2: float
) -> None:
    has = np.zeros((len(log), 7))
    for user, history in enumerate(log):
        has[user, history] = 1
    expected = np.zeros((7, 7))
    for item in range(7):
        others = np.delete(np.arange(7), item)
        x = has[:, others]
        expected[others, item] = np.linalg.solve(x.T @ x + l2 * np.eye(6), x.T @ has[:, item])
    model = EASE.fit(Histories.from_lists(log), 6, EASESettings(l2))
    np.testing.assert_allclose(model.weights, expected, atol=1e-4)
    scores = model.score(Histories.from_lists([[2, 5, 2]]))
    np.testing.assert_allclose(scores[0, 1:], expected[2, 1:] + expected[5, 1:], atol=1e-4)


LISTS = [[1, 2, 2], [2, 3, 1], [3, 4], [5], [1, 2, 4], [4, 5, 1]]
small_logs = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=8)


def binary_matrix(lists: list[list[int]], num_items: int) -> NDArray[np.float64]:
    """Return 1 where the user has the item [B, I]."""
    matrix = np.zeros((len(lists), num_items))
    for user, items in enumerate(lists):
        matrix[user, [item - 1 for item in items]] = 1
    return matrix


def test_matrix_factorisation_equals_the_decomposition_of_numpy() -> None:
    dim, power, spectrum = 2, 0.3, 0.5
    settings = MatrixFactorisationSettings(dim, 0.5, power, spectrum)
    matrix = binary_matrix(LISTS, 5)
    _, singular, rows = np.linalg.svd(matrix * matrix.sum(axis=0) ** -power)
    similar = (rows[:dim].T * singular[:dim] ** (2 * spectrum)) @ rows[:dim]
    expected = [similar[3] + 0.5 * similar[1] + 0.25 * similar[3], similar[0]]
    model = MatrixFactorisation.fit(Histories.from_lists(LISTS), 5, settings)
    scores = model.score(Histories.from_lists([[4, 2, 4], [1]]))
    np.testing.assert_allclose(scores[:, 1:], expected, rtol=1e-5, atol=1e-6)


@given(small_logs)
@example([[1, 2]] * 3)
@example([[2, 3, 4]] * 3)  # their variance is 0, and a rounding error on some processors
def test_all_dimensions_reconstruct_the_log(lists: list[list[int]]) -> None:
    """V V' projects onto the rows of the matrix, whatever its rank: no noise remains."""
    full = MatrixFactorisationSettings(dim=5, decay=1, popularity_power=0, spectrum_power=0)
    model = MatrixFactorisation.fit(Histories.from_lists(lists), 5, full)
    once = [sorted(set(items)) for items in lists if items]
    scores = model.score(Histories.from_lists(once))
    np.testing.assert_allclose(scores[:, 1:], binary_matrix(once, 5), atol=1e-5)
    assert model.item_vectors.shape[1] == np.linalg.matrix_rank(binary_matrix(lists, 5))


@pytest.mark.parametrize("name", BASELINES)
def test_a_saved_baseline_scores_as_before(
    name: str, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    scorer = BASELINES[name].fit(tiny_dataset, "test", BASELINES[name].grid[0])
    save_counts(scorer, tmp_path / "file")
    loaded = load_baseline(tmp_path / "file", name, tiny_dataset.num_items)
    histories = tiny_dataset.histories("test")
    assert torch.equal(loaded.score(histories), scorer.score(histories))
    (tmp_path / "file").write_bytes(b"no tensors here, and long enough to be read")
    with pytest.raises(InputError, match="file: cannot be read as a baseline"):
        load_baseline(tmp_path / "file", name, tiny_dataset.num_items)
