"""What a log is like, as the report of a run shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.data.audit import Finding
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset

_BINS = 60
"""The number of periods of the picture over time."""
_OLDEST, _LATEST = 100_000_000, 5_000_000_000
"""Times between these are seconds since 1970: 1973 to 2128. Others are numbers of any scale."""
_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)
"""Seconds, milliseconds, microseconds and nanoseconds."""


@dataclass(frozen=True, eq=False)
class LogSummary:
    """Facts of a log that describe it; no choice is made from them.

    Lengths and times are of the whole log, which is the training, validation and test part.
    Popularity is counted on the training part, as models see it.
    """

    name: str
    """The name or path of the log."""
    rows: int
    """The rows of the source, the dropped ones included."""
    dropped: Mapping[str, int]
    """How many rows were dropped, by reason; empty reasons are left out."""
    users: int
    items: int
    """The size of the catalogue: the items of training and validation."""
    interactions: int
    """The interactions that were kept: training, validation and test."""
    parts: Mapping[str, int]
    """The number of interactions in training, validation and test."""
    lengths: NDArray[np.int64]
    """Shape [U]: the number of interactions of each user."""
    counts: NDArray[np.int64]
    """Shape [I], descending: the training interactions of each item."""
    periods: NDArray[np.float64]
    """Shape [P + 1]: the edges of equally long periods, in seconds since 1970 if times are dates,
    else on the scale of the log."""
    per_period: NDArray[np.int64]
    """Shape [P]: the number of interactions in each period."""
    dated: bool
    """Are the times dates?"""
    repeats: float
    """The share of interactions with an item that the user had before, 0 to 1."""
    findings: tuple[Finding, ...]
    """The findings of the audit."""

    @classmethod
    def of(cls, dataset: PreparedDataset, findings: Sequence[Finding] = ()) -> LogSummary:
        """Describe a prepared dataset.

        Args:
            dataset: the dataset.
            findings: those of `recsys.data.audit.audit`.
        """
        counts = dataset.manifest.counts
        trained = dataset.items[dataset.in_training]
        popularity = np.bincount(trained, minlength=dataset.num_items + 1)[1:]
        times = np.asarray(dataset.timestamps)
        first = int(times.min())
        per_period, edges = np.histogram(times - first, bins=_BINS)  # nanoseconds exceed floats
        unit = _unit(first, int(times.max()))
        return cls(
            name=dataset.manifest.origin,
            rows=counts["rows_read"],
            dropped={reason: n for reason, n in dataset.manifest.dropped.items() if n},
            users=dataset.num_users,
            items=dataset.num_items,
            interactions=counts["interactions"],
            parts={
                "training": counts["train"],
                "validation": counts["valid"],
                "test": counts["test"],
            },
            lengths=np.diff(dataset.offsets),
            counts=np.sort(popularity)[::-1].astype(np.int64),
            periods=(first + edges) / (unit or 1),
            per_period=per_period.astype(np.int64),
            dated=unit is not None,
            repeats=_share_of_repeats(dataset),
            findings=tuple(findings),
        )


def _unit(first: int, last: int) -> int | None:
    """Return how many of the times' units are a second; None if times are no dates."""
    fits = (unit for unit in _UNITS if _OLDEST * unit < first and last < _LATEST * unit)
    return next(fits, None)


def _share_of_repeats(dataset: PreparedDataset) -> float:
    """Return the share of interactions with an item of the catalogue that the user had before."""
    users = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
    known = dataset.items != PAD
    pairs = users[known] * (dataset.num_items + 1) + dataset.items[known]
    # Sorting is quicker than hashing here: np.unique of many distinct numbers is slow.
    ordered = np.sort(pairs)
    again = int(np.count_nonzero(ordered[1:] == ordered[:-1]))
    return again / len(pairs) if len(pairs) else 0.0
