"""Names of metrics: ``recall_at_10`` is recall with the cut-off 10."""

from __future__ import annotations

import re
from collections.abc import Iterable


def split_name(metric: str) -> tuple[str, int | None]:
    """Split a name into the kind of metric and its cut-off; None if it has no cut-off.

    >>> split_name("next_recall_at_5"), split_name("mrr"), split_name("ndcg_at_0")
    (('next_recall', 5), ('mrr', None), ('ndcg_at_0', None))
    """
    found = re.fullmatch(r"(?P<kind>.+)_at_(?P<k>[1-9]\d*)", metric)
    return (metric, None) if found is None else (found["kind"], int(found["k"]))


def usage(kinds: Iterable[str]) -> str:
    """List kinds of metrics as messages name them.

    >>> usage(["recall", "mrr"])
    'recall_at_K, mrr_at_K or mrr'
    """
    names = [f"{kind}_at_K" for kind in kinds]
    names += ["mrr"] * ("mrr_at_K" in names)
    return ", ".join(names[:-1]) + f" or {names[-1]}" if len(names) > 1 else names[0]
