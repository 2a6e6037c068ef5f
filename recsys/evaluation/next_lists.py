"""Evaluate lists of next purchases, where a split holds out several purchases per user."""

from __future__ import annotations

from collections.abc import Mapping

from recsys.config import GlobalTime, LeaveLastBasketOut, LeaveLastOut, RequestTime
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.metrics.intervals import Interval
from recsys.evaluation.tables import NextListTable
from recsys.inference.generator import SequenceGenerator
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Scorer, Seen
from recsys.model.protocols import Model
from recsys.model.sequence_to_sequence import SequenceToSequence

BASKET_LIST_LENGTH = 10
"""The length of the lists that are compared to baskets, which differ in size."""


def next_list_length(dataset: PreparedDataset) -> int | None:
    """The length of each list, n; None where the split holds out one target per user."""
    match dataset.config.split:
        case LeaveLastOut(targets=length):
            pass
        case LeaveLastBasketOut() | GlobalTime(targets="every", history="frozen"):
            length = BASKET_LIST_LENGTH
        case _:
            length = 1
    return min(length, dataset.num_items) if length > 1 else None


def evaluate_lists(
    source: Scorer | SequenceGenerator,
    dataset: PreparedDataset,
    part: Part,
    seen: Seen,
    request_time: RequestTime = "unknown",
) -> NextListTable | None:
    """Make a list for every user with targets in a part of the split, and tabulate both.

    Args:
        source: a generator, which generates lists purchase by purchase; or a scorer, whose lists
            are its best items.
        dataset: its split determines the length of the lists.
        part: the part of the split.
        seen: whether items of the user's history are excluded from the lists.
        request_time: if known, the source reads the time of the first purchase of the part.

    Returns:
        The table; None where the split holds out one target per user.

    Raises:
        InputError: the generator cannot generate lists of that length.
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
    """Evaluate the lists of a model, by name; none where the split holds out one target per user.

    - ``lists``: the lists that a generative model generates; the best items of another model.
    - ``lists_best``: of a generative model, its best items for the very next purchase, the list
      without generation: the comparison shows what generation adds.

    Args:
        model: the trained model.
        best: scores the very next purchase: the model, with any count ensemble.
        max_sequence_length: the number of latest items of a history that it reads.
        dataset: its split determines the length of the lists.
        part: the part of the split.
        seen: whether items of the user's history are excluded from the lists.
        request_time: see `evaluate_lists`.

    Raises:
        InputError: the model cannot generate lists of that length.
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
    """The metrics of the tables of `evaluate_model_lists`.

    Those of ``lists`` have their own names (``next_recall_at_5``), those of ``lists_best`` the
    prefix ``best_`` (``best_next_recall_at_5``).
    """
    return {
        ("best_" if name == "lists_best" else "") + metric: interval
        for name, table in tables.items()
        for metric, interval in table.summary().items()
    }
