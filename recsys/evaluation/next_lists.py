"""Lists of next purchases, where a split holds out more than one purchase per user."""

from __future__ import annotations

from collections.abc import Mapping

from recsys.config import GlobalTime, LeaveLastBasketOut, LeaveLastOut, RequestTime
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.metrics.intervals import Interval
from recsys.evaluation.tables.next_list import NextListTable
from recsys.inference.generator import SequenceGenerator
from recsys.inference.ranking import Seen, top_k
from recsys.inference.scorer import Scorer
from recsys.model.build import Model
from recsys.model.sequence_to_sequence import SequenceToSequence

BASKET_PLACES = 10
"""Length of the lists that are held against baskets, which differ in size."""


def next_list_length(dataset: PreparedDataset) -> int | None:
    """Places of each list, n; None where one target per user leaves nothing to list."""
    match dataset.config.split:
        case LeaveLastOut(targets=places):
            pass
        case LeaveLastBasketOut() | GlobalTime(targets="every", history="frozen"):
            places = BASKET_PLACES
        case _:
            places = 1
    return min(places, dataset.num_items) if places > 1 else None


def evaluate_lists(
    source: Scorer | SequenceGenerator,
    dataset: PreparedDataset,
    part: Part,
    seen: Seen,
    request_time: RequestTime = "unknown",
) -> NextListTable | None:
    """Make a list for every user with targets in a part of the split, and keep both.

    Args:
        source: a generator writes its lists purchase by purchase; a scorer's are its best items.
        dataset: whose split says how long the lists are.
        part: of the split.
        seen: whether items of the user's history are left out of the lists.
        request_time: known: the source is told when the first purchase of the part was.

    Returns:
        The table; None where one target per user leaves nothing to list.

    Raises:
        InputError: the generator cannot write lists of that length.
    """
    length = next_list_length(dataset)
    if length is None:
        return None
    next_purchases = dataset.next_purchases(part, request_time)
    if isinstance(source, SequenceGenerator):
        lists, _ = source.generate(next_purchases.histories, length, seen)
    else:
        lists, _ = top_k(source, next_purchases.histories, length, seen)
    return NextListTable.of(lists, next_purchases, part, dataset.num_items, seen)


def evaluate_model_lists(
    model: Model,
    best: Scorer,
    max_sequence_length: int,
    dataset: PreparedDataset,
    part: Part,
    seen: Seen,
    request_time: RequestTime = "unknown",
) -> dict[str, NextListTable]:
    """The lists of a model, by name; none where one target per user leaves nothing to list.

    - ``lists``: what the model writes purchase by purchase; of a model that cannot write, its best
      items.
    - ``lists_best``: of a model that writes, its best items for the very next purchase, the list
      that there is without writing: what writing is worth shows against it.

    Args:
        model: fitted.
        best: scores what may come very next: the model, any counts with it.
        max_sequence_length: the newest items of a history that it reads.
        dataset: whose split says how long the lists are.
        part: of the split.
        seen: whether items of the user's history are left out of the lists.
        request_time: see `evaluate_lists`.

    Raises:
        InputError: the model cannot write lists of that length.
    """
    sources: dict[str, Scorer | SequenceGenerator] = {"lists": best}
    if isinstance(model, SequenceToSequence):
        sources = {"lists": SequenceGenerator(model, max_sequence_length), "lists_best": best}
    tables = {
        name: evaluate_lists(source, dataset, part, seen, request_time)
        for name, source in sources.items()
    }
    return {name: table for name, table in tables.items() if table is not None}


def list_summary(tables: Mapping[str, NextListTable]) -> dict[str, Interval]:
    """Figures of what `evaluate_model_lists` returns.

    Those of ``lists`` have their own names (``next_recall_at_5``), those of ``lists_best`` stand
    behind ``best_`` (``best_next_recall_at_5``).
    """
    return {
        ("best_" if name == "lists_best" else "") + figure: interval
        for name, table in tables.items()
        for figure, interval in table.summary().items()
    }
