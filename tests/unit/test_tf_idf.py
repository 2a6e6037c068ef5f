"""TF-IDF vectors equal those of scikit-learn to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
from sklearn.preprocessing import normalize  # type: ignore[import-untyped]

from recsys.data.features.tf_idf import tf_idf, unit_rows

TEXTS = [
    "Red hat, red SHOE",
    "Größe 42: hat_band",
    "a b c",
    "",
    "the hat of the shoe; the end",
    "naïve Σίσυφος ĲSSEL",
]


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[2:4], [], ["shoe"] * 3])
def test_vectors_equal_those_of_scikit_learn(texts: list[str]) -> None:
    vectorizer = TfidfVectorizer().fit(TEXTS)
    words = vectorizer.get_feature_names_out().tolist()
    found = tf_idf(texts, words, vectorizer.idf_)
    assert found.shape == (len(texts), len(words))
    if texts:
        expected = vectorizer.transform(texts)
        assert found.toarray().tolist() == expected.toarray().tolist()


@given(st.lists(st.text(alphabet="ab ,1Äß_-\n", max_size=12), min_size=1, max_size=8))
def test_projected_vectors_equal_those_of_scikit_learn(texts: list[str]) -> None:
    vectorizer = TfidfVectorizer().fit([*texts, "aa bb ab"])
    words, rarity = vectorizer.get_feature_names_out().tolist(), vectorizer.idf_
    directions = np.random.default_rng(0).normal(size=(3, len(words)))
    expected = normalize(vectorizer.transform(texts) @ directions.T)
    found = unit_rows(tf_idf(texts, words, rarity) @ directions.T)
    assert found.tolist() == expected.tolist()
