"""What lists of best items do with the catalogue, whatever they foretell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import RequestTime
from recsys.data.histories import PAD, Histories
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.metrics import user_means
from recsys.evaluation.scorer import user_batches
from recsys.evaluation.top_k_table import TopKTable

Lists = NDArray[np.int32]
"""Item tokens [N, k], best first; PAD: nothing in this place."""


def coverage_and_gini(lists: Lists, num_items: int) -> tuple[float, float]:
    """Share of the catalogue that is in any list; and how unevenly places go to items.

    Gini is 0 where every item of the catalogue has as many places, and near 1 where one has all.

    >>> coverage_and_gini(np.array([[1, 2], [1, 3]]), num_items=4)
    (0.75, 0.375)
    """
    places = np.sort(np.bincount(lists[lists != PAD], minlength=num_items + 1)[1:])
    weights = 2 * np.arange(1, num_items + 1) - num_items - 1
    uneven = float(weights @ places) / (num_items * max(1, int(places.sum())))
    return float(np.count_nonzero(places) / num_items), uneven


def mean_of_lists(lists: Lists, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over the items of each list [N] of a number that each item has; NaN of an empty list.

    Args:
        lists: [N, k].
        values: by item token [I + 1].
    """
    means = np.empty(len(lists))
    for some in user_batches(*lists.shape):
        there = lists[some] != PAD
        with np.errstate(invalid="ignore"):
            means[some] = (values[lists[some]] * there).sum(axis=1) / there.sum(axis=1)
    return means


def diversity(lists: Lists, features: NDArray[np.int64]) -> NDArray[np.float64]:
    """How unlike the items of each list are [N]; NaN of a list with fewer than two.

    The mean, over all pairs of its items, of the share of features in which the two differ
    (intra-list diversity; Ziegler et al., WWW 2005, with the Hamming distance). An unknown value
    differs from every other.

    Args:
        lists: [N, k].
        features: of each item token, a number for each value; -1: unknown [I + 1, F].

    >>> diversity(np.array([[1, 2, 3]]), features=np.array([[-1], [5], [5], [6]]))
    array([0.66666667])
    """
    unlike = np.empty(len(lists))
    for some in user_batches(len(lists), lists.shape[1]):
        listed = lists[some]
        sizes = (listed != PAD).sum(axis=1)
        alike = np.zeros(len(listed))
        for column in features.T:
            values = np.where(listed == PAD, -1, column[listed])
            rows = np.broadcast_to(np.arange(len(listed))[:, None], listed.shape)[values >= 0]
            width = int(column.max(initial=0)) + 1
            shared, counts = np.unique(rows * width + values[values >= 0], return_counts=True)
            alike += np.bincount(shared // width, counts * (counts - 1.0), len(listed))
        with np.errstate(invalid="ignore"):
            unlike[some] = 1 - alike / (sizes * (sizes - 1) * features.shape[1])
    return unlike


def item_features(items: pl.DataFrame) -> NDArray[np.int64]:
    """The categories in an item table, as numbers by item token [I + 1, F]; -1: unknown.

    Categories are columns of text, truth values or enumerations in which a value stands for two
    items or more, on average: not titles, ids or numbers.
    """
    kinds = (pl.String, pl.Boolean, pl.Categorical, pl.Enum)
    columns = [items[name] for name in items.columns if name != "item_id"]
    categories = [
        column
        for column in columns
        if column.dtype in kinds and 0 < 2 * column.drop_nulls().n_unique() <= column.count()
    ]
    features = np.full((len(items) + 1, len(categories)), -1, dtype=np.int64)
    for place, column in enumerate(categories):
        numbers = column.cast(pl.String).rank("dense").cast(pl.Int64).fill_null(-1)
        features[1:, place] = numbers.to_numpy()
    return features


def catalogue_figures(
    table: TopKTable,
    dataset: PreparedDataset,
    cutoffs: Sequence[int],
    request_time: RequestTime = "unknown",
) -> dict[str, float]:
    """Figures of the k best items, for each cut-off k that the lists are long enough for.

    Popularity is the number of interactions before the targets. Means are over users.

    - ``coverage_at_K``, ``gini_at_K``: see `coverage_and_gini`;
    - ``novelty_at_K``: mean of -log2(popularity / interactions), in bits; an item that was never
      bought counts as bought once;
    - ``popularity_lift_at_K``: mean popularity of the listed items / mean popularity of the items
      in the histories of the same users; 1 is as popular as what they bought;
    - ``diversity_at_K``: see `diversity`; of k > 1, where the item table has categories.

    Args:
        table: made of a part of the dataset.
        dataset: that one.
        cutoffs: the values of k.
        request_time: as the lists were asked for; see `PreparedDataset.holdout`.

    Returns:
        Figures by name; those that have no value are left out.
    """
    bought = dataset.histories(table.protocol.part).items
    popularity = np.bincount(bought, minlength=dataset.num_items + 1).astype(np.float64)
    novelty = -np.log2(np.maximum(popularity, 1) / max(1, len(bought)))
    histories = dataset.holdout(table.protocol.part, request_time).histories
    usual = _mean_of_histories(histories, popularity)
    features = item_features(dataset.item_table)
    users, every = table.frame["user"].to_numpy(), table.items

    def figures(k: int) -> Iterator[tuple[str, float]]:
        lists = every[:, :k]
        coverage, gini = coverage_and_gini(lists, dataset.num_items)
        yield "coverage", coverage
        yield "gini", gini
        yield "novelty", _mean(mean_of_lists(lists, novelty), users)
        listed = mean_of_lists(lists, popularity)
        both = np.where(np.isnan(usual), np.nan, listed), np.where(np.isnan(listed), np.nan, usual)
        yield "popularity_lift", _mean(both[0], users) / _mean(both[1], users)
        if k > 1 and features.shape[1]:
            yield "diversity", _mean(diversity(lists, features), users)

    return {
        f"{name}_at_{k}": value
        for k in cutoffs
        if k <= table.protocol.length
        for name, value in figures(k)
        if np.isfinite(value)
    }


def _mean_of_histories(histories: Histories, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over the items of each history [N]; NaN of an empty one."""
    sums = np.bincount(histories.users, values[histories.items], len(histories))
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = sums / histories.lengths
    return means


def _mean(values: NDArray[np.float64], users: NDArray[np.int64]) -> float:
    """Over users of the means over their lists, of those that have a value; NaN if none has."""
    there = ~np.isnan(values)
    return float(user_means(values[there], users[there]).mean()) if there.any() else float("nan")
