"""TF-IDF vectors of texts, as scikit-learn makes them: scoring does without scikit-learn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

_WORD = re.compile(r"\b\w\w+\b")


def tf_idf(
    texts: Iterable[str], words: Sequence[str], inverse_frequency: NDArray[np.float64]
) -> csr_array:
    """Return vectors [R, W] of length 1, or 0 if a text has none of the words.

    Entry w is the number of times word w is in the text, times its inverse document frequency,
    over the length of the vector. Words have at least two characters and are compared in lower
    case, as in ``sklearn.feature_extraction.text.TfidfVectorizer``.

    Args:
        texts: R texts.
        words: W words in lower case.
        inverse_frequency: Shape [W]: inverse document frequencies.

    >>> tf_idf(["Red hat, red shoe", "42"], ["hat", "red"], np.array([1.5, 1.0])).toarray()
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    column_of = {word: column for column, word in enumerate(words)}
    rows: list[int] = []
    columns: list[int] = []
    count = 0
    for row, text in enumerate(texts):
        known = [column_of[word] for word in _WORD.findall(text.lower()) if word in column_of]
        columns += known
        rows += [row] * len(known)
        count = row + 1
    entries = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
    vectors = csr_array((np.ones(len(rows)), entries), shape=(count, len(words)))
    vectors.sum_duplicates()
    vectors.data *= inverse_frequency[vectors.indices]
    owner = np.repeat(np.arange(count), np.diff(vectors.indptr))
    lengths = np.sqrt(np.bincount(owner, vectors.data**2, minlength=count))
    vectors.data /= lengths[owner]
    return vectors


def unit_rows(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of length 1; a row of zeros stays 0."""
    lengths = np.sqrt(np.einsum("rd,rd->r", vectors, vectors))
    unit: NDArray[np.float64] = vectors / np.where(lengths == 0, 1.0, lengths)[:, None]
    return unit
