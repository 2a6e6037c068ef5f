"""Metrics of the best items over the catalogue: by hand, and saved and loaded."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.baselines.counts import Popularity
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import catalogue_metrics, item_features
from recsys.evaluation.metrics import coverage, diversity, gini
from recsys.evaluation.tables import top_k_table
from recsys.inference.ranking import top_k

LISTS = np.array([[1, 2, 3], [1, 4, 0]], dtype=np.int32)
lists_of_six = st.lists(
    st.permutations(range(1, 7)).map(lambda row: row[:4]), min_size=1, max_size=8
).map(lambda rows: np.array(rows, dtype=np.int32))


def test_coverage_and_gini_by_hand() -> None:
    assert coverage(LISTS, 8) == 0.5
    # Positions 0, 1, 1, 2: (-3 · 0 - 1 · 1 + 1 · 1 + 3 · 2) / (4 · 4).
    cases: list[tuple[np.ndarray, int, float, float]] = [
        (np.array([[1, 2], [1, 3]]), 4, 0.75, 6 / 16),
        (np.array([[1], [2], [3]]), 3, 1.0, 0.0),
        (np.full((5, 1), 2), 4, 0.25, 0.75),
        (np.zeros((2, 3), dtype=np.int32), 4, 0.0, 0.0),
    ]
    for lists, num_items, share, inequality in cases:
        assert coverage(lists, num_items) == share
        assert gini(lists, num_items) == inequality


@given(lists_of_six, st.integers(0, 99))
def test_diversity_is_the_mean_over_pairs(lists: np.ndarray, seed: int) -> None:
    features = np.random.default_rng(seed).integers(-1, 3, (7, 2))
    expected = [
        np.mean(
            [
                1 - np.mean((features[a] == features[b]) & (features[a] >= 0))
                for a in row
                for b in row
                if a < b
            ]
        )
        for row in lists.tolist()
    ]
    assert diversity(lists, features).tolist() == pytest.approx(expected)


def test_titles_and_numbers_are_not_categories() -> None:
    items = pl.DataFrame(
        {
            "item_id": [1, 2, 3, 4],
            "title": ["a", "b", "c", "d"],
            "year": [1990, 1990, 2000, 2000],
            "colour": ["red", None, "red", "red"],
            "new": [True, False, False, True],
            "nothing": pl.Series([None] * 4, dtype=pl.String),
        }
    )
    assert item_features(items).tolist() == [[-1, -1], [1, 2], [-1, 1], [1, 1], [1, 2]]


def test_metrics_of_a_dataset_by_hand(tiny_dataset: PreparedDataset) -> None:
    # Before test: boots 5, gloves 3, hat 3, jacket 1, socks 1 of 13 interactions.
    popularity = np.bincount(tiny_dataset.histories("test").items, minlength=6)[1:]
    assert popularity.tolist() == [5, 3, 3, 1, 1]
    targets = tiny_dataset.holdout("test")
    scorer = Popularity(np.array([0.0, 5, 3, 4, 2, 1]))
    items, scores = top_k(scorer, targets.histories, tiny_dataset.num_items, "allow")
    table = top_k_table(items, scores, targets, tiny_dataset.num_items, "allow")
    metrics = catalogue_metrics(table, tiny_dataset, targets.histories, (1, 2, 50))
    names = ("coverage", "gini", "novelty", "popularity_lift")
    assert set(metrics) == {f"{name}_at_{k}" for name in names for k in (1, 2)}
    assert metrics["coverage_at_2"] == 2 / 5
    assert metrics["gini_at_1"] == 4 / 5
    assert metrics["novelty_at_2"] == pytest.approx(-(math.log2(5 / 13) + math.log2(3 / 13)) / 2)
    assert targets.users.tolist() == [0, 1, 2, 3, 5]  # not eve, whose scarf is in no catalogue
    usual = np.mean([(5 + 3 + 3) / 3, (5 + 3 + 5) / 3, (3 + 5) / 2, 1, (1 + 5) / 2])
    assert metrics["popularity_lift_at_1"] == pytest.approx(5 / usual)
