"""Matrix factorisation, against numpy's decomposition and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from recsys.baselines.neighbours import (
    MatrixFactorisation,
    MatrixFactorisationSettings,
)
from recsys.data.histories import Histories

PURE_SVD = MatrixFactorisationSettings(dim=2, decay=1, popularity_power=0, spectrum_power=0)
LISTS = [[1, 2, 2], [2, 3, 1], [3, 4], [5], [1, 2, 4], [4, 5, 1]]
LOG = Histories.from_lists(LISTS)
logs = st.lists(st.lists(st.integers(1, 5), max_size=6), min_size=1, max_size=8)


def scores_of(model: MatrixFactorisation, histories: list[list[int]]) -> NDArray[np.float32]:
    """Return the scores by item without padding [B, I]."""
    scores: NDArray[np.float32] = model.score(Histories.from_lists(histories))[:, 1:].numpy()
    return scores


def binary_matrix(lists: list[list[int]], num_items: int) -> NDArray[np.float64]:
    """Return 1 where the user has the item [B, I]."""
    matrix = np.zeros((len(lists), num_items))
    for user, items in enumerate(lists):
        matrix[user, [item - 1 for item in items]] = 1
    return matrix


def test_two_separate_groups_of_items_by_hand() -> None:
    # Items 1 and 2 go together three times, 3 and 4 twice: v = (1, 1, 0, 0) / sqrt 2 with the
    # singular value sqrt 6, and (0, 0, 1, 1) / sqrt 2 with sqrt 4.
    train = Histories.from_lists([[1, 2], [3, 4], [2, 1], [4, 3], [1, 2]])
    pure = MatrixFactorisation.fit(train, 4, PURE_SVD)
    expected = np.array([[0.5, 0.5, 0, 0], [0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5]])
    np.testing.assert_allclose(scores_of(pure, [[1], [3, 4], [4, 2]]), expected, atol=1e-7)

    decaying = MatrixFactorisationSettings(dim=2, decay=0.5, popularity_power=0.5, spectrum_power=1)
    model = MatrixFactorisation.fit(train, 4, decaying)
    # Columns divided by sqrt 3 and sqrt 2: both singular values are sqrt 2; the older counts half.
    expected = np.array([[1, 1, 0, 0], [0, 0, 1.5, 1.5], [1, 1, 0.5, 0.5]])
    np.testing.assert_allclose(scores_of(model, [[1], [3, 4], [4, 2]]), expected, atol=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("power", [0.0, 0.3])
@pytest.mark.parametrize("spectrum", [0.0, 0.5])
def test_equals_the_decomposition_of_numpy(dim: int, power: float, spectrum: float) -> None:
    settings = MatrixFactorisationSettings(dim, 0.5, power, spectrum)
    matrix = binary_matrix(LISTS, 5)
    _, singular, rows = np.linalg.svd(matrix * matrix.sum(axis=0) ** -power)
    similar = (rows[:dim].T * singular[:dim] ** (2 * spectrum)) @ rows[:dim]
    expected = [similar[3] + 0.5 * similar[1] + 0.25 * similar[3], similar[0]]
    scores = scores_of(MatrixFactorisation.fit(LOG, 5, settings), [[4, 2, 4], [1]])
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


@given(logs)
@example([[1, 2]] * 3)
@example([[2, 3, 4]] * 3)  # their variance is 0, and a rounding error on some processors
def test_all_dimensions_reconstruct_the_log(lists: list[list[int]]) -> None:
    """V V' projects onto the rows of the matrix, whatever its rank: no noise remains."""
    full = MatrixFactorisationSettings(dim=5, decay=1, popularity_power=0, spectrum_power=0)
    model = MatrixFactorisation.fit(Histories.from_lists(lists), 5, full)
    once = [sorted(set(items)) for items in lists if items]
    np.testing.assert_allclose(scores_of(model, once), binary_matrix(once, 5), atol=1e-5)
    assert model.item_vectors.shape[1] == np.linalg.matrix_rank(binary_matrix(lists, 5))


@given(st.permutations([1, 2, 2, 3, 5]))
def test_only_recency_decay_makes_the_order_matter(items: list[int]) -> None:
    constant, decaying = MatrixFactorisation.fit(LOG, 5, PURE_SVD), MatrixFactorisation.fit(LOG, 5)
    np.testing.assert_allclose(
        scores_of(constant, [items]), scores_of(constant, [[1, 2, 2, 3, 5]]), rtol=1e-5, atol=1e-6
    )
    same = np.allclose(
        scores_of(decaying, [items]), scores_of(decaying, [[1, 2, 2, 3, 5]]), atol=1e-6
    )
    assert same == (items == [1, 2, 2, 3, 5])


def test_fitting_twice_gives_the_same_vectors() -> None:
    lists = (
        np.random.default_rng(0).integers(1, 400, (200, 8)).tolist()
    )  # more than the SVD samples
    first, second = (
        MatrixFactorisation.fit(Histories.from_lists(lists), 399, PURE_SVD) for _ in range(2)
    )
    assert first.item_vectors.tolist() == second.item_vectors.tolist()


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"decay": 0.0}, {"decay": 1.1}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MatrixFactorisationSettings(**wrong)  # type: ignore[arg-type]
