"""What a log is like: its numbers and three charts, as the page of a run shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from matplotlib.ticker import PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from recsys.data.audit import Finding
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.reports.charts import RUNS, Chart, Line, Style, add_lines, chart, new_axes

_PERIODS = 60
"""The number of periods of the chart over time."""
_POINTS = 60
"""The number of points of the curve of popularity."""
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
        first, last = int(times.min()), int(times.max())
        # Counted from the first: nanoseconds exceed floats.
        per_period, edges = np.histogram(times - first, bins=_PERIODS)
        fits = (unit for unit in _UNITS if _OLDEST * unit < first and last < _LATEST * unit)
        unit = next(fits, None)
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


def _share_of_repeats(dataset: PreparedDataset) -> float:
    """Return the share of interactions with an item of the catalogue that the user had before."""
    users = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
    known = dataset.items != PAD
    pairs = users[known] * (dataset.num_items + 1) + dataset.items[known]
    # Sorting is quicker than hashing here: np.unique of many distinct numbers is slow.
    ordered = np.sort(pairs)
    again = int(np.count_nonzero(ordered[1:] == ordered[:-1]))
    return again / len(pairs) if len(pairs) else 0.0


def log_charts(log: LogSummary) -> list[Chart]:
    """Draw a log: over time, the lengths of histories, and popularity."""
    return [_over_time(log), _lengths(log), _popularity(log)]


def _over_time(log: LogSummary) -> Chart:
    unit = "date (UTC)" if log.dated else "time, in the unit of the log"
    axes = new_axes(unit, "interactions")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.stairs(log.per_period, fill=True, color=RUNS[0][0])
    names = [_time(edge, log.dated) for edge in log.periods.tolist()]
    axes.set_xticks(range(10, len(names), 20), names[10::20])  # away from the corner
    return chart(
        axes,
        "log_time",
        "Over time",
        f"From {names[0]} to {names[-1]}, in {len(log.per_period)} periods of equal length.",
        ("from", "to", "interactions"),
        [
            (start, end, f"{count:,}")
            for start, end, count in zip(names, names[1:], log.per_period.tolist(), strict=False)
        ],
    )


def _time(time: float, dated: bool) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}" if dated else f"{time:,.0f}"


def _lengths(log: LogSummary) -> Chart:
    longest = int(log.lengths.max(initial=1))
    edges = length_edges(longest)
    counts = np.histogram(log.lengths, [*edges, np.inf])[0].tolist()
    first = next((number for number, count in enumerate(counts) if count), 0)
    lasts = [edge - 1 for edge in edges[1:]] + [max(longest, edges[-1])]
    pairs = list(zip(edges, lasts, strict=True))[first:]
    names = [str(low) if low == high else f"{low}–{high}" for low, high in pairs]
    counts = counts[first:]
    axes = new_axes("users", "interactions of a user", 60 + 17 * len(names))
    axes.barh(names, counts, color=RUNS[0][0])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.locator_params("x", integer=True, nbins=6)
    middle = float(np.median(log.lengths)) if len(log.lengths) else 0.0
    return chart(
        axes,
        "log_lengths",
        "Lengths of the histories",
        f"Half of the users have {middle:g} interactions or fewer; the longest history has "
        f"{int(log.lengths.max(initial=0)):,}.",
        ("length of the history", "users", "share"),
        [
            (name, f"{count:,}", f"{count / max(log.users, 1):.1%}")
            for name, count in zip(names, counts, strict=True)
        ],
    )


def length_edges(longest: int) -> list[int]:
    """Return where the bins of lengths begin: single lengths while they are few, else doubling.

    >>> length_edges(4), length_edges(100)
    ([1, 2, 3, 4], [1, 2, 4, 8, 16, 32, 64])
    """
    if longest <= 12:
        return list(range(1, max(longest, 1) + 1))
    return [2**power for power in range(int(np.log2(longest)) + 1)]


def _popularity(log: LogSummary) -> Chart:
    shares = np.concatenate([[0], np.cumsum(log.counts) / max(int(log.counts.sum()), 1)])
    ranks = np.unique(np.linspace(0, log.items, _POINTS).round().astype(np.int64))
    xs, ys = ranks / max(log.items, 1), shares[ranks]
    top = shares[max(1, round(log.items / 10))] if log.items else 0.0
    axes = new_axes("items, the most popular first", "share of the training interactions")
    add_lines(axes, [Line("", xs.tolist(), ys.tolist(), Style(RUNS[0][0]), strong=True)])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1))
    return chart(
        axes,
        "log_popularity",
        "Popularity",
        f"The most popular tenth of the items has {top:.0%} of the training interactions.",
        ("the most popular items", "share of the training interactions"),
        [(f"{x:.1%}", f"{y:.0%}") for x, y in zip(xs, ys, strict=True)],
    )
