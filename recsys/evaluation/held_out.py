"""The evaluation of a scorer on the held-out targets of one part of a split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.config.data import GlobalTime, LeaveLastBasketOut, LeaveLastOut
from recsys.config.experiment import EvaluationConfig, RequestTime
from recsys.data.histories import PAD, Bools, Histories
from recsys.data.prepared import Part, PreparedDataset
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.metrics import coverage, diversity, gini, mean_of_lists, user_means
from recsys.evaluation.tables import (
    Candidates,
    NextListTable,
    RankTable,
    SavedTable,
    TopKTable,
    next_list_table,
    rank_table,
    top_k_table,
)
from recsys.inference.ranking import rank_targets, top_k
from recsys.inference.scorer import Scored, Scorer, Seen, TopItems, user_batches

_LONGEST = 100


def find_holdout(dataset: PreparedDataset, part: Part, request_time: RequestTime) -> Holdout:
    """Return the held-out targets of a part.

    Raises:
        InputError: there are no targets; or the request times of several targets after one history
            are to be known, although these targets are ranked in one list.
    """
    holdout, split = dataset.holdout(part, request_time), dataset.config.split
    if not len(holdout.targets):
        raise InputError(
            f"{dataset.path}: {split} leaves no {part} targets to evaluate on "
            f"({holdout.dropped:,} outside the catalogue, {holdout.without_history:,} without a "
            "history): prepare it with longer histories or another data.split"
        )
    rows, times = holdout.history_rows, holdout.histories.request_times
    shared = (np.diff(holdout.users) == 0) & (np.diff(holdout.histories.lengths[rows]) == 0)
    if times is not None and (shared & (np.diff(times[rows]) != 0)).any():
        raise InputError(
            f"{dataset.path}: evaluation.request_time=known: {split} has several {part} targets "
            "after one history, which are requested at different times: hold out one, or let "
            "histories advance"
        )
    return holdout


class HeldOutParts(NamedTuple):
    """The targets of both held-out parts."""

    valid: Holdout
    test: Holdout
    weighing: Holdout
    """Validation targets that weights of counts are chosen on: more of them where `valid` is a
    sample, since the weights next to the best one are nearly as good."""

    @classmethod
    def find(cls, dataset: PreparedDataset, request_time: RequestTime) -> HeldOutParts:
        """Return both; see `find_holdout`."""
        valid = find_holdout(dataset, "valid", request_time)
        return cls(valid, find_holdout(dataset, "test", request_time), valid)


def evaluate_held_out(
    score: Callable[[Holdout], Tensor],
    dataset: PreparedDataset,
    holdout: Holdout,
    config: EvaluationConfig,
    candidates: Candidates | None,
    added: Callable[[Scorer], Scorer] | None = None,
) -> tuple[dict[str, SavedTable], dict[str, float]]:
    """Rank the test targets and list the best items, scoring each history once.

    ``score`` returns the scores [H, I + 1] of the H histories of some of the targets; ``added``
    adds to them.

    Returns:
        The tables ``ranks_test`` and ``topk_test``; and the `catalogue_metrics` of the latter. The
        best items are always of the full catalogue, and the cut-offs of the protocol decide how
        many are listed. What is ``added`` counts; the ranks without it are
        ``ranks_test_model_alone``.
    """
    num_items, histories, seen = dataset.num_items, holdout.histories, config.seen
    length = min(max(config.cutoffs, default=1), _LONGEST, num_items)
    items = np.empty((len(histories), length), dtype=np.int32)
    values = np.empty(items.shape, dtype=np.float32)
    ranks, ranks_alone = np.empty((2, len(holdout.targets)), dtype=np.int64)
    for batch in user_batches(len(histories), num_items):
        rows, some = holdout.after(np.r_[batch])
        rank = partial(
            rank_targets,
            histories=some.histories,
            targets=some.targets,
            seen=seen,
            candidates=None if candidates is None else candidates.sets.take(rows),
            rows=some.history_rows,
        )
        scored: Scorer = Scored(score(some))
        if added is not None:
            ranks_alone[rows] = rank(scored)
            scored = Scored(added(scored).score(some.histories))
        items[batch], values[batch] = top_k(scored, some.histories, length, seen)
        ranks[rows] = rank(scored)

    def table(of: NDArray[np.int64]) -> RankTable:
        made = rank_table(of, holdout, "test", num_items, seen, candidates=candidates)
        return with_segments(made, dataset, holdout)

    best = top_k_table(items, values, holdout, num_items, seen)
    tables: dict[str, SavedTable] = {"ranks_test": table(ranks), "topk_test": best}
    if added is not None:
        tables["ranks_test_model_alone"] = table(ranks_alone)
    return tables, catalogue_metrics(best, dataset, histories, config.cutoffs)


# --- Metrics of the best items --------------------------------------------------------------------

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

    def mean(values: NDArray[np.float64], valid: Bools) -> float:
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


# --- Segments of targets --------------------------------------------------------------------------

_HISTORY = {1: "1-4", 5: "5-9", 10: "10-19", 20: "20-49", 50: "50-99", 100: "100+"}


def with_segments(table: RankTable, dataset: PreparedDataset, holdout: Holdout) -> RankTable:
    """Return the table with columns of segments: comparing by segment then needs no data.

    These are history (its length), purchase (repeat: the item is in the history; or new) and
    popularity_decile (1: the most popular, before the part; equal items by token).
    """
    histories, rows, num_items = holdout.histories, holdout.history_rows, dataset.num_items
    seen = np.unique(histories.users * (num_items + 1) + histories.items)
    repeated = np.isin(rows * (num_items + 1) + holdout.targets, seen)
    bought = dataset.histories(table.protocol.part).items
    most_popular = np.argsort(-np.bincount(bought, minlength=num_items + 1)[1:], kind="stable")
    deciles = np.zeros(num_items + 1, dtype=np.int8)
    deciles[1 + most_popular] = 1 + np.arange(num_items) * 10 // num_items
    lengths = [*_HISTORY.values()]
    history = np.searchsorted([*_HISTORY], histories.lengths[rows], side="right") - 1
    frame = table.frame.with_columns(
        history=pl.Series(lengths, dtype=pl.Enum(lengths)).gather(history),
        purchase=pl.Series(np.where(repeated, "repeat", "new"), dtype=pl.Enum(["new", "repeat"])),
        popularity_decile=pl.Series(deciles[holdout.targets]),
    )
    return RankTable(frame, table.protocol)


# --- Lists of next purchases ----------------------------------------------------------------------

BASKET_LIST_LENGTH = 10
"""The length of the lists that are compared to baskets, which differ in size."""
ListMaker = Callable[[Histories, int, Seen], TopItems]
"""Makes a list of a length for each history, such as a `generate_lists` of a model."""


def next_list_length(dataset: PreparedDataset) -> int | None:
    """Return the length of each list, n; None where the split holds out one target per user."""
    match dataset.config.split:
        case LeaveLastOut(targets=length):
            pass
        case LeaveLastBasketOut() | GlobalTime(targets="every", history="frozen"):
            length = BASKET_LIST_LENGTH
        case _:
            length = 1
    return min(length, dataset.num_items) if length > 1 else None


def evaluate_lists(
    sources: Mapping[str, Scorer | ListMaker],
    dataset: PreparedDataset,
    seen: Seen,
    holdout: Holdout | None = None,
) -> dict[str, NextListTable]:
    """Make a list for every user with test targets, or some of them, and tabulate both by name.

    The lists of scorers are their best items. There are no tables where the split holds out one
    target per user.

    Raises:
        InputError: a model cannot generate lists of that length.
    """
    length, tables = next_list_length(dataset), {}
    if length is None:
        return {}
    holdout = dataset.holdout("test") if holdout is None else holdout
    for name, source in sources.items():
        make = source if callable(source) else partial(top_k, source)
        lists, _ = make(holdout.histories, length, seen)
        tables[name] = next_list_table(lists, holdout, dataset.num_items, seen)
    return tables


# --- Calibrated probabilities ---------------------------------------------------------------------

CALIBRATING = 500
"""Histories that a temperature is fitted on, drawn at random if there are more."""
_STEPS, _PRECISION = 30, 1e-4
_FARTHEST, _LARGEST = 4.0, 1e6
"""The largest factor by which a step changes the temperature, and the largest temperature."""


def temperature_of(scorer: Scorer, holdout: Holdout, seed: int) -> float | None:
    """Return the temperature with the least log loss on targets, drawn by the seed; None without.

    Scores divided by it are the logits of calibrated probabilities: Guo et al. 2017, "On
    calibration of modern neural networks". The log loss is convex in 1 / temperature: Newton's
    method finds its minimum.
    """
    holdout = holdout.sample(CALIBRATING, seed)
    if not len(holdout.targets):
        return None
    inverse = 1.0
    for _ in range(_STEPS):
        slope = curvature = 0.0
        for scores, target_scores in _known_scores(scorer, holdout):
            probabilities = (scores * inverse).softmax(dim=1)
            known = scores.masked_fill(scores == -torch.inf, 0.0)
            mean = (probabilities * known).sum(dim=1)
            slope += float((mean - target_scores).sum())
            curvature += float((probabilities * (known - mean[:, None]) ** 2).sum())
        if curvature <= 0:  # all scores are equal, or the target of each history stands out
            break
        lowest = max(inverse / _FARTHEST, 1 / _LARGEST)
        highest = min(inverse * _FARTHEST, _LARGEST)
        before, inverse = inverse, min(max(inverse - slope / curvature, lowest), highest)
        if abs(inverse / before - 1) < _PRECISION:
            break
    return 1 / inverse


@torch.inference_mode()
def _known_scores(scorer: Scorer, holdout: Holdout) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the scores of all items [B, I] and of the targets [B] that are not -inf."""
    for batch in user_batches(len(holdout.histories), scorer.num_items):
        _, own = holdout.after(np.r_[batch])
        scores = scorer.score(own.histories).double().cpu()[torch.from_numpy(own.history_rows)]
        targets = scores.gather(1, torch.from_numpy(own.targets.astype(np.int64))[:, None])[:, 0]
        possible = targets > -torch.inf
        yield scores[possible, 1:], targets[possible]
