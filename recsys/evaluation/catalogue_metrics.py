"""Novelty, popularity and diversity of the best items, beside coverage and Gini coefficient."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.metrics import coverage, gini, user_means
from recsys.evaluation.tables import TopKTable
from recsys.inference.scorer import user_batches

_KINDS = (pl.String, pl.Boolean, pl.Categorical, pl.Enum)


def catalogue_metrics(
    table: TopKTable, dataset: PreparedDataset, histories: Histories, cutoffs: Sequence[int]
) -> dict[str, float]:
    """Return the metrics of the k best items for each cut-off k that the lists are long enough for.

    Popularity is the number of interactions before the targets. Means are over users.

    - ``coverage_at_K``, ``gini_at_K``: see `coverage` and `gini`;
    - ``novelty_at_K``: mean of -log2(popularity / interactions), in bits; an item that was never
      bought counts as bought once;
    - ``popularity_lift_at_K``: mean popularity of the listed items / mean popularity of the items
      in the histories of the same users; 1 is as popular as the items they bought;
    - ``diversity_at_K``: see `diversity`; for k > 1, if the item table has categories.

    Metrics without a value are left out. The histories are those of the lists.
    """
    bought = dataset.histories(table.protocol.part).items
    popularity = np.bincount(bought, minlength=dataset.num_items + 1).astype(np.float64)
    novelty = -np.log2(np.maximum(popularity, 1) / max(1, len(bought)))
    sums = np.bincount(histories.users, popularity[histories.items], len(histories))
    usual = sums / histories.lengths
    features = item_features(dataset.item_table)
    users, all_lists = table.frame["user"].to_numpy(), table.items

    def mean(values: NDArray[np.float64], valid: NDArray[np.bool_]) -> float:
        """Average over users the means over their lists that have a value."""
        return float(user_means(values[valid], users[valid]).mean()) if valid.any() else np.nan

    def metrics(k: int) -> Iterator[tuple[str, float]]:
        lists = all_lists[:, :k]
        yield "coverage", coverage(lists, dataset.num_items)
        yield "gini", gini(lists, dataset.num_items)
        some = lists[:, 0] != PAD
        yield "novelty", mean(mean_of_lists(lists, novelty), some)
        yield "popularity_lift", mean(mean_of_lists(lists, popularity), some) / mean(usual, some)
        if k > 1 and features.shape[1]:
            different = diversity(lists, features)
            yield "diversity", mean(different, ~np.isnan(different))

    return {
        f"{name}_at_{k}": value
        for k in cutoffs
        if k <= table.protocol.length
        for name, value in metrics(k)
        if np.isfinite(value)
    }


def item_features(items: pl.DataFrame) -> NDArray[np.int64]:
    """Return the categories of each item token as numbers [I + 1, F]; -1 if unknown.

    Categories are columns of text, booleans or enumerations in which a value has two items or more
    on average: not titles, ids or numbers.
    """
    categories = [
        column
        for column in items.drop("item_id", strict=False)
        if column.dtype in _KINDS and 0 < 2 * column.drop_nulls().n_unique() <= column.count()
    ]
    features = np.full((len(items) + 1, len(categories)), -1, dtype=np.int64)
    for number, column in enumerate(categories):
        values = column.cast(pl.String).rank("dense").cast(pl.Int64).fill_null(-1)
        features[1:, number] = values.to_numpy()
    return features


def mean_of_lists(lists: NDArray[np.int32], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average the values of items [I + 1] over those of each list [N, k]; NaN for an empty list."""
    means = np.empty(len(lists))
    for batch in user_batches(*lists.shape):
        listed = lists[batch]
        with np.errstate(invalid="ignore"):
            sums = (values[listed] * (listed != PAD)).sum(axis=1)
            means[batch] = sums / (listed != PAD).sum(axis=1)
    return means


def diversity(lists: NDArray[np.int32], features: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how different the items of each list are [N]; NaN for fewer than two items.

    The mean, over all pairs of its items, of the share of features in which the two differ
    (intra-list diversity; Ziegler et al., WWW 2005, with the Hamming distance). An unknown value
    differs from every other.

    Lists are item tokens [N, k], PAD an empty position; features are those of `item_features`.

    >>> diversity(np.array([[1, 2, 3]]), features=np.array([[-1], [5], [5], [6]]))
    array([0.66666667])
    """
    different = np.empty(len(lists))
    for batch in user_batches(*lists.shape):
        listed = lists[batch]
        equal_pairs = np.zeros(len(listed))
        for column in features.T:
            values = np.where(listed == PAD, -1, column[listed])
            rows = np.nonzero(values >= 0)[0]
            width = int(column.max(initial=0)) + 1
            shared, counts = np.unique(rows * width + values[values >= 0], return_counts=True)
            equal_pairs += np.bincount(shared // width, counts * (counts - 1.0), len(listed))
        sizes = (listed != PAD).sum(axis=1)
        with np.errstate(invalid="ignore"):
            different[batch] = 1 - equal_pairs / (sizes * (sizes - 1) * features.shape[1])
    return different
