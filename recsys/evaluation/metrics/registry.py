"""All metrics by name, and the table that each of them is computed from.

To add a metric, write its function beside those of the same table and enter it in their mapping:
`RANK_METRICS`, `NEXT_LIST_METRICS` or `TOP_K_METRICS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from recsys.errors import InputError
from recsys.evaluation.metrics.beyond_accuracy import DATASET_METRICS, TOP_K_METRICS
from recsys.evaluation.metrics.lists import NEXT_LIST_METRICS
from recsys.evaluation.metrics.names import split_name, usage
from recsys.evaluation.metrics.ranks import RANK_METRICS

Source = Literal["ranks", "next_lists", "top_k", "logged"]
"""The rank table, the next-list table, the top-k table, or the metrics that a run logged."""

SOURCES: Mapping[str, Source] = {
    **dict.fromkeys(RANK_METRICS, "ranks"),
    **dict.fromkeys(NEXT_LIST_METRICS, "next_lists"),
    **dict.fromkeys(TOP_K_METRICS, "top_k"),
    **dict.fromkeys(DATASET_METRICS, "logged"),
}
"""The source of every kind of metric."""


class Metric(NamedTuple):
    """A metric that runs can be compared by."""

    name: str
    """E.g. ``ndcg_at_10``."""
    source: Source

    @property
    def per_user(self) -> bool:
        """Does every user have a value, so that there are intervals and tests?"""
        return self.source in ("ranks", "next_lists")


def find_metric(name: str) -> Metric:
    """Look up a metric.

    Raises:
        InputError: there is no such metric.

    >>> find_metric("coverage_at_10")
    Metric(name='coverage_at_10', source='top_k')
    """
    kind, k = split_name(name)
    if kind not in SOURCES or (k is None and kind != "mrr"):
        raise InputError(f"metric {name!r}: must be {usage(SOURCES)}")
    return Metric(name, SOURCES[kind])
