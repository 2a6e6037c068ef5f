"""Lists of next purchases, where a split holds out more than one purchase per user."""

from __future__ import annotations

from recsys.config import LeaveLastOut
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.continuation import ContinuationTable
from recsys.evaluation.ranking import Seen, top_k
from recsys.evaluation.scorer import Scorer
from recsys.evaluation.sequence_generator import SequenceGenerator

BASKET_PLACES = 10
"""Length of the lists that are held against baskets, which differ in size."""


def list_length(dataset: PreparedDataset) -> int | None:
    """Places of each list, n; None where one target per user leaves nothing to list."""
    split = dataset.config.split
    places = split.targets if isinstance(split, LeaveLastOut) else BASKET_PLACES
    return min(places, dataset.num_items) if places > 1 else None


def evaluate_lists(
    source: Scorer | SequenceGenerator, dataset: PreparedDataset, part: Part, seen: Seen
) -> ContinuationTable | None:
    """Make a list for every user with targets in a part of the split, and keep both.

    Args:
        source: a generator writes its lists purchase by purchase; a scorer's are its best items.
        dataset: whose split says how long the lists are.
        part: of the split.
        seen: whether items of the user's history are left out of the lists.

    Returns:
        The table; None where one target per user leaves nothing to list.

    Raises:
        InputError: the generator cannot write lists of that length.
    """
    length = list_length(dataset)
    if length is None:
        return None
    continuations = dataset.continuations(part)
    if isinstance(source, SequenceGenerator):
        lists, _ = source.generate(continuations.histories, length, seen)
    else:
        lists, _ = top_k(source, continuations.histories, length, seen)
    return ContinuationTable.of(lists, continuations, part, dataset.num_items, seen)
