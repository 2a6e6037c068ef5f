"""Pictures of a log: lengths of histories, popularity, and time."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from recsys.drawing.axes import value_axis
from recsys.drawing.bars import Bar, draw_bars
from recsys.drawing.lines import Line, draw_lines
from recsys.drawing.marks import BEST
from recsys.drawing.picture import FULL, HALF, Picture, draw
from recsys.drawing.values import bar_values, line_values
from recsys.report.log_summary import LogSummary

_CURVE = 60
"""The number of points of the popularity curve."""
_MONTH = 31 * 86_400


def log_pictures(log: LogSummary) -> list[Picture]:
    """Draw a log: over time, as wide as the page; lengths of histories and popularity."""
    return [_over_time(log), _lengths(log), _popularity(log)]


def _lengths(log: LogSummary) -> Picture:
    edges = length_edges(int(log.lengths.max(initial=1)))
    counts = np.histogram(log.lengths, [*edges, np.inf])[0].tolist()
    first = next((number for number, count in enumerate(counts) if count), 0)
    edges, counts = edges[first:], counts[first:]
    bars = []
    for number, (low, count) in enumerate(zip(edges, counts, strict=True)):
        last = number == len(edges) - 1
        high = int(log.lengths.max(initial=low)) if last else edges[number + 1] - 1
        label = str(low) if high <= low else f"{low}–{high}"
        text = f"{count:,} users, {count / max(log.users, 1):.1%}"
        bars.append(Bar(label, count, f"{label} interactions", text))
    middle = float(np.median(log.lengths)) if len(log.lengths) else 0.0
    return draw(
        "log_lengths",
        "Lengths of the histories",
        f"Half of the users have {middle:g} interactions or fewer; the longest history has "
        f"{int(log.lengths.max(initial=0)):,}.",
        HALF,
        lambda width: draw_bars(
            bars, width, "interactions of a user", "users", "Users by length of their history"
        ),
        bar_values(bars, "length of the history", "users"),
    )


def length_edges(longest: int) -> list[int]:
    """Return where the bins of lengths begin: single lengths while they are few, else doubling.

    >>> length_edges(4), length_edges(100)
    ([1, 2, 3, 4], [1, 2, 4, 8, 16, 32, 64])
    """
    if longest <= 12:
        return list(range(1, max(longest, 1) + 1))
    return [2**power for power in range(int(np.log2(longest)) + 1)]


def _popularity(log: LogSummary) -> Picture:
    total = max(int(log.counts.sum()), 1)
    shares = np.concatenate([[0], np.cumsum(log.counts) / total])
    chosen = np.unique(np.linspace(0, log.items, _CURVE).round().astype(np.int64))
    xs, ys = chosen / max(log.items, 1), shares[chosen]
    top = shares[max(1, round(log.items / 10))] if log.items else 0.0
    line = Line(
        "",
        xs.tolist(),
        ys.tolist(),
        places=[f"the {x:.1%} most popular items" for x in xs],
        values=[f"{y:.0%} of the interactions" for y in ys],
        style=BEST,
        strong=True,
    )
    x = value_axis("items, the most popular first", 0, 1, percent=True)
    y = value_axis("share of the training interactions", 0, 1, percent=True)
    return draw(
        "log_popularity",
        "Popularity",
        f"The most popular tenth of the items has {top:.0%} of the training interactions.",
        HALF,
        lambda width: draw_lines(
            [line], width, x, y, "Share of the interactions of the most popular items", height=230
        ),
        line_values([line], "items", "share of the training interactions"),
    )


def _over_time(log: LogSummary) -> Picture:
    span = float(log.periods[-1] - log.periods[0])
    names = [time_label(edge, log.dated, span) for edge in log.periods.tolist()]
    bars = [
        Bar(
            name,
            count,
            f"{time_label(low, log.dated, 0)} to {time_label(high, log.dated, 0)}",
            f"{count:,} interactions",
        )
        for name, low, high, count in zip(
            names, log.periods, log.periods[1:], log.per_period.tolist(), strict=False
        )
    ]
    unit = "date (UTC)" if log.dated else "time, in the unit of the log"
    first, last = (time_label(float(end), log.dated, 0) for end in log.periods[[0, -1]])
    return draw(
        "log_time",
        "Over time",
        f"From {first} to {last}, in {len(bars)} periods of equal length.",
        FULL,
        lambda width: draw_bars(bars, width, unit, "interactions", "Interactions over time"),
        bar_values(bars, "period", "interactions"),
    )


def time_label(time: float, dated: bool, span: float) -> str:
    """Return a time of the log as text: a month where the span is long, a day where it is short.

    >>> time_label(0, True, 1e9), time_label(86400, True, 0), time_label(1234, False, 5)
    ('1970-01', '1970-01-02', '1,234')
    """
    if not dated:
        return f"{time:,.0f}"
    moment = datetime.fromtimestamp(time, UTC)
    return f"{moment:%Y-%m}" if span > 4 * _MONTH else f"{moment:%Y-%m-%d}"
