"""All metrics as functions of arrays, by name: of ranks, of lists of next purchases, of best items.

A *list* is one ranking of the catalogue for one user after one history, with all targets that
follow it. A user may have several (a history that advances): the user's value is the mean over
them, and every mean, interval and test is one over users. The targets of one user are not
independent observations: resampling them would give intervals that are too narrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories, Int32s, Int64s
from recsys.errors import InputError
from recsys.inference.ranking import NEVER
from recsys.inference.scorer import user_batches

Values = NDArray[np.float64]
RESAMPLES = 1_000
_DRAWS_AT_ONCE = 1 << 22
"""The largest number of counts that a bootstrap holds in memory: 32 MiB."""


class RankedLists(NamedTuple):
    """Q targets in N lists, the targets of each list ordered from the best rank on."""

    ranks: Int64s
    """[Q]."""
    rows: Int64s
    """The list that each target is in [Q], ascending."""
    positions: Int64s
    """The position of each target among those of its list [Q], j, from 1."""
    sizes: Int64s
    """The number of targets in each list [N], m."""

    @classmethod
    def of(cls, ranks: Int64s, lists: Int64s) -> RankedLists:
        """Order the targets; both arrays have the shape [Q]."""
        order = np.lexsort((ranks, lists))
        _, rows, sizes = np.unique(lists[order], return_inverse=True, return_counts=True)
        positions = np.arange(1, len(ranks) + 1) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return cls(ranks[order], rows, positions, sizes)

    def sums(self, k: int, gains: Values | float = 1.0, best: bool = False) -> Values:
        """Add up the gains [Q] of each list [N]: of targets, or the best one, among the K best."""
        counted = (self.ranks <= k) & (self.positions == 1 if best else True)
        return np.bincount(self.rows, counted * gains, len(self.sizes)).astype(float, copy=False)


def _ndcg(lists: RankedLists, k: int) -> Values:
    ideal = np.cumsum(1 / np.log2(np.arange(2, 2 + min(k, lists.sizes.max(initial=1)))))
    gains = lists.sums(k, 1 / np.log2(1 + lists.ranks))
    return gains / ideal[np.minimum(lists.sizes, k) - 1]


RANK_METRICS: Mapping[str, Callable[[RankedLists, int], Values]] = {
    "recall": lambda lists, k: lists.sums(k) / lists.sizes,
    "hit_rate": lambda lists, k: lists.sums(k, best=True),
    "precision": lambda lists, k: lists.sums(k) / k,
    "ndcg": _ndcg,
    "map": lambda lists, k: lists.sums(k, lists.positions / lists.ranks) / lists.sizes,
    "mrr": lambda lists, k: lists.sums(k, 1 / lists.ranks, best=True),
}
"""The metrics of every list [N] with their cut-off k, by name; see `metric_values`."""


def metric_values(ranks: Int64s, metric: str, lists: Int64s | None = None) -> Values:
    """Return one metric of every list [N], lists ascending.

    For a list with m targets:

    - ``recall_at_K``: targets among the K best / m;
    - ``hit_rate_at_K``: 1 if any target is among the K best;
    - ``precision_at_K``: targets among the K best / K;
    - ``ndcg_at_K``: the sum of 1 / log2(1 + rank) over the targets among the K best / the same sum
      over the first min(m, K) ranks (Järvelin and Kekäläinen 2002, with gain 1);
    - ``mrr``, ``mrr_at_K``: 1 / rank of the best target (if it is among the K best);
    - ``map_at_K``: the sum of j / rank over the targets among the K best, the j-th best target
      having j targets up to its rank, / m (as trec_eval's map_cut: by m, not by min(m, K)).

    Args:
        ranks: the ranks of the targets in their lists [Q]; the targets of one list are different
            items. Targets whose equal scores tie have the same rank, each behind the other.
        metric: the name of the metric.
        lists: the list of each target [Q]. If None, each target is a list of its own.

    Raises:
        InputError: there is no such metric.

    >>> metric_values(np.array([2, 9, 1]), "recall_at_5", lists=np.array([7, 7, 8]))
    array([0.5, 1. ])
    """
    kind, k = split_name(metric, RANK_METRICS)
    lists = np.arange(len(ranks)) if lists is None else lists
    return RANK_METRICS[kind](RankedLists.of(ranks, lists), min(k or NEVER, NEVER - 1))


def metric_names(cutoffs: Sequence[int]) -> list[str]:
    """Return the metrics that are logged: recall and NDCG for each cut-off, and MRR.

    >>> metric_names([5])
    ['recall_at_5', 'ndcg_at_5', 'mrr']
    """
    return [f"{kind}_at_{k}" for kind in ("recall", "ndcg") for k in cutoffs] + ["mrr"]


def user_means(values: Values, users: Int64s) -> Values:
    """Return the mean of each user's values [U], users ascending, from values [Q].

    >>> user_means(np.array([1.0, 0.0, 0.5]), users=np.array([7, 7, 9]))
    array([0.5, 0.5])
    """
    _, rows, counts = np.unique(users, return_inverse=True, return_counts=True)
    return np.bincount(rows, values, len(counts)) / counts


def user_values(ranks: Int64s, users: Int64s, metric: str, lists: Int64s | None = None) -> Values:
    """Return `metric_values` of every user [U], users ascending: the mean over the user's lists."""
    lists = np.arange(len(ranks)) if lists is None else lists
    _, first = np.unique(lists, return_index=True)
    return user_means(metric_values(ranks, metric, lists), users[first])


def summarise(
    ranks: Int64s, users: Int64s, metrics: Sequence[str], lists: Int64s | None = None
) -> dict[str, Interval]:
    """Average metrics over users, by name, with percentile-bootstrap intervals over the users.

    One set of resamples and a fixed seed: the same ranks always give the same intervals. A
    ValueError if there are no ranks.
    """
    _, counts = np.unique(users, return_counts=True)
    if len(counts) == len(ranks):  # one target per user: users of equal rank form one group
        ranks, counts = np.unique(ranks, return_counts=True)
        users, lists = np.arange(len(ranks)), None
    else:  # hardly two users have the same ranks: each is a group
        counts = np.ones_like(counts)
    values = np.stack([user_values(ranks, users, name, lists) for name in metrics])
    intervals = bootstrap_means(values, counts, np.random.default_rng(0))
    return dict(zip(metrics, intervals, strict=True))


# --- Means over users with their intervals --------------------------------------------------------


class Interval(NamedTuple):
    """A mean over users with its 95% interval over samples of as many users."""

    mean: float
    low: float
    high: float


def by_end(intervals: Mapping[str, Interval]) -> dict[str, float]:
    """Return means by their names, and 95% intervals as ``NAME_low`` and ``NAME_high``."""
    return {
        name + end: value
        for name, interval in intervals.items()
        for end, value in zip(("", "_low", "_high"), interval, strict=True)
    }


def bootstrap_means(
    values: Values, counts: Int64s, generator: np.random.Generator, resamples: int = RESAMPLES
) -> list[Interval]:
    """Return means with percentile-bootstrap 95% intervals, of observations grouped by value.

    Resampling only changes how many fall into each group, and those numbers are multinomial: with
    groups, 35,000 users cost as much as their distinct ranks.

    Values are M metrics in each of G groups [M, G], counts the observations in each group [G]; a
    ValueError if there are none.
    """
    total = int(counts.sum())
    if total == 0:
        raise ValueError("no targets: a mean of nothing has no value")
    means = np.concatenate(
        [
            generator.multinomial(total, counts / total, size=size) @ values.T / total
            for size in chunks(resamples, len(counts))
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    mean = values @ counts / total
    return [Interval(*map(float, row)) for row in zip(mean, low, high, strict=True)]


def chunks(rows: int, width: int) -> Iterator[int]:
    """Yield sizes that add up to ``rows``, such that ``size * width`` numbers fit in memory."""
    size = max(1, _DRAWS_AT_ONCE // width)
    for start in range(0, rows, size):
        yield min(size, rows - start)


# --- Lists of next purchases ----------------------------------------------------------------------

_ORDERED = ("next_ordered_recall", "next_ordered_ndcg")
NEXT_LIST_METRICS = ("next_recall", "next_ndcg", "next_f1", *_ORDERED)


def next_list_metrics(lists: Int32s, targets: Histories) -> dict[str, Values]:
    """Return the metrics of one list of n items per user, each between 0 and 1, by name.

    As sets (an item listed again takes a position and gains nothing; targets in any order):

    - ``next_recall_at_n``: distinct targets in the list / distinct targets;
    - ``next_ndcg_at_n``: the sum of 1 / log2(1 + position) over listed targets / the same sum over
      the first positions, as many as there are distinct targets, at most n (Järvelin and
      Kekäläinen 2002, with gain 1);
    - ``next_f1_at_n``: 2 · distinct targets in the list / (items listed + distinct targets), the
      harmonic mean of recall and precision: the F1 of baskets.

    In order (position i against the i-th purchase; the rest of the longer one counts for nothing):

    - ``next_ordered_recall_at_n``: positions that hold their purchase / positions that could;
    - ``next_ordered_ndcg_at_n``: the same positions, each weighted by 1 / log2(1 + position).

    Lists are item tokens [Q, n], PAD an empty position; targets are the purchases of Q users,
    oldest first, at least one each (else a ValueError).

    >>> bought = Histories.from_lists([[7, 5, 9]])
    >>> metrics = next_list_metrics(np.array([[5, 3, 9]]), bought)
    >>> {name: values.round(3).tolist() for name, values in metrics.items()}
    {'next_recall_at_3': [0.667], 'next_ndcg_at_3': [0.704], 'next_f1_at_3': [0.667],
     'next_ordered_recall_at_3': [0.333], 'next_ordered_ndcg_at_3': [0.235]}
    """
    if len(lists) != len(targets) or not targets.lengths.all():
        raise ValueError(f"{len(lists)} lists need as many users, each with at least one target")
    n = lists.shape[1]
    # One number per user and item.
    width = max(lists.max(initial=PAD), targets.items.max(initial=PAD)) + np.int64(1)
    bought = np.unique(targets.users * width + targets.items)
    listed = np.arange(len(lists))[:, None] * width + lists
    first = np.zeros(lists.shape, dtype=np.bool_)
    first.flat[np.unique(listed, return_index=True)[1]] = True
    hits = first & np.isin(listed, bought)
    distinct = np.bincount(bought // width, minlength=len(targets))
    starts, due = targets.offsets[:-1], np.minimum(targets.lengths, n)
    in_order = lists == targets.spans(starts, starts + due).padded(n)
    in_order &= lists != PAD
    discount = 1 / np.log2(np.arange(2, n + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discount)])
    metrics = (
        hits.sum(axis=1) / distinct,
        hits @ discount / ideal[np.minimum(distinct, n)],
        2 * hits.sum(axis=1) / ((lists != PAD).sum(axis=1) + distinct),
        in_order.sum(axis=1) / due,
        in_order @ discount / ideal[due],
    )
    return {f"{name}_at_{n}": value for name, value in zip(NEXT_LIST_METRICS, metrics, strict=True)}


# --- Best items: all lists together, and each -----------------------------------------------------


def coverage(lists: Int32s, num_items: int) -> float:
    """Return the share of the catalogue that is in any list; PAD marks an empty position.

    >>> coverage(np.array([[1, 2], [1, 3]]), num_items=4)
    0.75
    """
    return float(np.count_nonzero(_positions_of_items(lists, num_items)) / num_items)


def gini(lists: Int32s, num_items: int) -> float:
    """Return the Gini coefficient of the positions that the items of the catalogue take.

    It is 0 if every item takes as many, and near 1 if one item takes all.

    >>> gini(np.array([[1, 2], [1, 3]]), num_items=4)
    0.375
    """
    positions = np.sort(_positions_of_items(lists, num_items))
    weights = 2 * np.arange(1, num_items + 1) - num_items - 1
    return float(weights @ positions) / (num_items * max(1, int(positions.sum())))


def _positions_of_items(lists: Int32s, num_items: int) -> Int64s:
    """Count the positions that each item of the catalogue takes [I]."""
    return np.bincount(lists[lists != PAD], minlength=num_items + 1)[1:]


def mean_of_lists(lists: Int32s, values: Values) -> Values:
    """Average the values of items [I + 1] over those of each list [N, k]; NaN for an empty list."""
    means = np.empty(len(lists))
    for batch in user_batches(*lists.shape):
        listed = lists[batch]
        with np.errstate(invalid="ignore"):
            sums = (values[listed] * (listed != PAD)).sum(axis=1)
            means[batch] = sums / (listed != PAD).sum(axis=1)
    return means


def diversity(lists: Int32s, features: Int64s) -> Values:
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


# --- All metrics by name --------------------------------------------------------------------------

Source = Literal["ranks", "next_lists", "logged"]
"""The rank table, the next-list table, or the metrics that a run logged."""
SOURCES: Mapping[str, Source] = {
    **dict.fromkeys(RANK_METRICS, "ranks"),
    **dict.fromkeys(NEXT_LIST_METRICS, "next_lists"),
    # Those of all lists together are computed where the dataset is (`catalogue_metrics`).
    **dict.fromkeys(("coverage", "gini", "novelty", "popularity_lift", "diversity"), "logged"),
}


def source_of(metric: str) -> Source:
    """Return where the values of a metric come from, or raise InputError: there is no such one."""
    return SOURCES[split_name(metric, SOURCES)[0]]


def split_name(metric: str, kinds: Iterable[str]) -> tuple[str, int | None]:
    """Split a name into its kind, one of the given ones, and its cut-off; only mrr may lack one.

    >>> split_name("next_recall_at_5", SOURCES), split_name("mrr", SOURCES)
    (('next_recall', 5), ('mrr', None))
    """
    match = re.fullmatch(r"(.+)_at_([1-9]\d*)", metric)
    kind, k = (metric, None) if match is None else (match[1], int(match[2]))
    if kind in kinds and (k is not None or kind == "mrr"):
        return kind, k
    names = [f"{kind}_at_K" for kind in kinds]
    names += ["mrr"] * ("mrr_at_K" in names)
    raise InputError(f"metric {metric!r}: must be {', '.join(names[:-1])} or {names[-1]}")
