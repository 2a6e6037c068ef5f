"""Coverage, novelty, popularity and diversity of the best items over the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.metrics.beyond_accuracy import (
    TOP_K_METRICS,
    diversity,
    mean_of_lists,
)
from recsys.evaluation.metrics.ranks import user_means
from recsys.evaluation.tables import TopKTable


def item_features(items: pl.DataFrame) -> NDArray[np.int64]:
    """Return the categories of each item token as numbers [I + 1, F]; -1 if unknown.

    Categories are columns of text, booleans or enumerations in which a value has two items or more
    on average: not titles, ids or numbers.
    """
    kinds = (pl.String, pl.Boolean, pl.Categorical, pl.Enum)
    columns = [items[name] for name in items.columns if name != "item_id"]
    categories = [
        column
        for column in columns
        if column.dtype in kinds and 0 < 2 * column.drop_nulls().n_unique() <= column.count()
    ]
    features = np.full((len(items) + 1, len(categories)), -1, dtype=np.int64)
    for number, column in enumerate(categories):
        values = column.cast(pl.String).rank("dense").cast(pl.Int64).fill_null(-1)
        features[1:, number] = values.to_numpy()
    return features


def catalogue_metrics(
    table: TopKTable,
    dataset: PreparedDataset,
    histories: Histories,
    cutoffs: Sequence[int],
) -> dict[str, float]:
    """Return the metrics of the k best items for each cut-off k that the lists are long enough for.

    Popularity is the number of interactions before the targets. Means are over users.

    - ``coverage_at_K``, ``gini_at_K``: see `coverage` and `gini`;
    - ``novelty_at_K``: mean of -log2(popularity / interactions), in bits; an item that was never
      bought counts as bought once;
    - ``popularity_lift_at_K``: mean popularity of the listed items / mean popularity of the items
      in the histories of the same users; 1 is as popular as the items they bought;
    - ``diversity_at_K``: see `diversity`; for k > 1, if the item table has categories.

    Args:
        table: the best items after each history.
        dataset: the dataset of the holdout.
        histories: the histories of the holdout.
        cutoffs: the values of k.

    Returns:
        Metrics by name, without those that have no value.
    """
    bought = dataset.histories(table.protocol.part).items
    popularity = np.bincount(bought, minlength=dataset.num_items + 1).astype(np.float64)
    novelty = -np.log2(np.maximum(popularity, 1) / max(1, len(bought)))
    usual = _mean_of_histories(histories, popularity)
    features = item_features(dataset.item_table)
    users, all_lists = table.frame["user"].to_numpy(), table.items

    def metrics(k: int) -> Iterator[tuple[str, float]]:
        lists = all_lists[:, :k]
        for name, metric in TOP_K_METRICS.items():
            yield name, metric(lists, dataset.num_items)
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
        for name, value in metrics(k)
        if np.isfinite(value)
    }


def _mean_of_histories(histories: Histories, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average a number of the items over each history [N]; NaN for an empty one."""
    sums = np.bincount(histories.users, values[histories.items], len(histories))
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = sums / histories.lengths
    return means


def _mean(values: NDArray[np.float64], users: NDArray[np.int64]) -> float:
    """Average over users the means over their lists that have a value; NaN if none has."""
    valid = ~np.isnan(values)
    return float(user_means(values[valid], users[valid]).mean()) if valid.any() else float("nan")
