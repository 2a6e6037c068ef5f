"""Pictures of a comparison: intervals first, then epochs, k, segments, users and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from recsys.comparison.formats import decimals, explained, heading, in_brackets, with_interval
from recsys.comparison.merit import RankedRun, by_merit, headline
from recsys.comparison.table import Comparison
from recsys.drawing.axes import Axis, log_axis, value_axis
from recsys.drawing.forest import ForestRow, draw_forest
from recsys.drawing.lines import Line, draw_lines
from recsys.drawing.marks import BEST
from recsys.drawing.picture import FULL, HALF, Picture, draw
from recsys.drawing.points import Point, draw_points
from recsys.drawing.values import Values, line_values
from recsys.tracking.artifacts import FIT_SECONDS

CUTOFFS = (1, 2, 3, 5, 10, 20, 50, 100)
"""The k of recall@k and NDCG@k that are drawn."""

Curves = Mapping[str, Mapping[int, float]]
"""NDCG@10 on the validation targets, by run id and epoch."""

_MOST_POINTS = 240
"""The number of users that are drawn in a curve, evenly chosen: more would not be visible."""


def draw_intervals(comparison: Comparison) -> Picture:
    """Draw the headline metric of every run with its interval, the best on top."""
    metric, runs = headline(comparison), by_merit(comparison)
    words = heading(metric)
    rows = [
        ForestRow(
            label=run.label + (" · reference" if run.is_reference else ""),
            mean=run.interval.mean,
            low=run.interval.low,
            high=run.interval.high,
            value=with_interval(run.interval),
            hover=f"{run.label}: {words} {with_interval(run.interval)}, {run.row.model}",
            style=run.style,
            strong=run.is_best,
            hollow=run.is_reference,
        )
        for run in runs
    ]
    reference = next((run.interval.mean for run in runs if run.is_reference), None)
    axis = _padded(words, [row.low for row in rows], [row.high for row in rows])
    caption = f"{explained(metric)} Means over users with 95% intervals".lstrip()
    if reference is not None:
        caption += ", the leading run on top. The hollow mark and the broken line are the "
        caption += "reference: the run that all others are tested against"
    return draw(
        "intervals",
        words,
        f"{caption}.",
        FULL,
        lambda width: draw_forest(rows, width, axis, f"{words} of every run", reference),
        Values(
            ("run", words, "95% interval"),
            tuple(
                (run.label, decimals(run.interval.mean), in_brackets(*run.interval[1:]))
                for run in runs
            ),
        ),
    )


def draw_differences(comparison: Comparison) -> Picture | None:
    """Draw the paired difference of every run to the first; None if none was tested."""
    metric = headline(comparison)
    words, first = heading(metric), comparison.rows[0].name
    rows, numbers = [], []
    for run in by_merit(comparison):
        if (found := run.row.differences.get(metric)) is None:
            continue
        interval = in_brackets(found.low, found.high, "+")
        change, p_value = decimals(found.difference, "+"), decimals(found.p_value)
        numbers.append((run.label, change, interval, p_value))
        text = f"{change}, p = {p_value}"
        rows.append(
            ForestRow(
                label=run.label,
                mean=found.difference,
                low=found.low,
                high=found.high,
                value=text,
                hover=f"{run.label} minus {first}: {text}, interval {interval}",
                style=run.style,
                strong=run.is_best,
            )
        )
    if not rows:
        return None
    lows, highs = [row.low for row in rows], [row.high for row in rows]
    axis = _padded(f"{words} minus that of {first}", [*lows, 0.0], [*highs, 0.0])
    return draw(
        "differences",
        f"Difference to {first}",
        "The same users under both runs: paired differences with 95% intervals and corrected "
        "p-values. An interval that crosses the broken line may be chance.",
        FULL,
        lambda width: draw_forest(rows, width, axis, f"Difference of {words} to {first}", 0.0),
        Values(("run", "difference", "95% interval", "p-value"), tuple(numbers)),
    )


def draw_curves(comparison: Comparison, curves: Curves) -> Picture | None:
    """Draw NDCG@10 on the validation targets by epoch; None if no run has a learning curve."""
    lines = []
    for run in by_merit(comparison):
        # A run with a count ensemble has two rows, but one curve.
        if (curve := curves.get(run.row.run_id)) and not run.model.first.model_alone:
            epochs = sorted(curve)
            lines.append(
                Line(
                    label=run.label,
                    xs=epochs,
                    ys=[curve[epoch] for epoch in epochs],
                    places=[f"epoch {epoch}" for epoch in epochs],
                    values=[decimals(curve[epoch]) for epoch in epochs],
                    style=run.style,
                    strong=run.is_best,
                )
            )
    if not lines:
        return None
    last = max(line.xs[-1] for line in lines)
    step = max(1, round(last / 8))
    x = Axis("epoch", 1, last, [(e, str(e)) for e in _epoch_ticks(int(last), step)])
    heights = [y for line in lines for y in line.ys]
    y = value_axis("NDCG@10 on validation", min(heights), max(heights))
    return draw(
        "learning_curves",
        "Learning curves",
        "NDCG@10 on the validation targets after each pass over the training data (epoch). The "
        "best epoch is kept.",
        FULL,
        lambda width: draw_lines(lines, width, x, y, "NDCG@10 on validation by epoch", height=340),
        line_values(lines, "epoch", "NDCG@10"),
    )


def draw_by_k(comparison: Comparison, kind: str) -> Picture:
    """Draw one metric of every run by k, with bands for the best run and the reference.

    Args:
        comparison: the runs.
        kind: ``recall`` or ``ndcg``.
    """
    names, words = [f"{kind}_at_{k}" for k in CUTOFFS], heading(f"{kind}_at_k")
    lines = []
    for run in by_merit(comparison):
        intervals = list(run.model.intervals(names).values())
        banded = run.style == BEST or run.is_reference
        lines.append(
            Line(
                label=run.label,
                xs=CUTOFFS,
                ys=[each.mean for each in intervals],
                lows=[each.low for each in intervals] if banded else (),
                highs=[each.high for each in intervals] if banded else (),
                places=[heading(name) for name in names],
                values=[with_interval(each) for each in intervals],
                style=run.style,
                strong=run.is_best,
            )
        )
    x = Axis("k", CUTOFFS[0], CUTOFFS[-1], [(k, str(k)) for k in CUTOFFS], logarithmic=True)
    y = value_axis(words, 0, max(max(line.highs or line.ys) for line in lines))
    title = "Recall by k" if kind == "recall" else "NDCG by k"
    caption = "Bands: 95% intervals over users"
    caption += ", of the leading run and of the reference." if len(lines) > 1 else "."
    if kind == "recall":
        caption = "The share of targets among the k best. " + caption
    return draw(
        f"{kind}_by_k",
        title,
        caption,
        HALF,
        lambda width: draw_lines(lines, width, x, y, f"{title} of every run"),
        line_values(lines, "metric", words),
    )


def draw_users(comparison: Comparison) -> Picture | None:
    """Draw the difference of every user to the first run, in ascending order; None without tests.

    Args:
        comparison: the runs.
    """
    metric = headline(comparison)
    first, lines, shares = comparison.models[0].values(metric), [], []
    for run in by_merit(comparison):
        if not run.row.differences:  # the first run, and those of other targets
            continue
        differences = np.sort(run.model.values(metric) - first)
        better, worse = (differences > 0).mean(), (differences < 0).mean()
        shares.append((run.label, f"{better:.0%}", f"{worse:.0%}", f"{1 - better - worse:.0%}"))
        count = min(len(differences), _MOST_POINTS)
        chosen = np.linspace(0, len(differences) - 1, count).round().astype(np.int64)
        lines.append(
            Line(
                label=run.label,
                xs=(chosen / max(len(differences) - 1, 1)).tolist(),
                ys=differences[chosen].tolist(),
                note=f" +{better:.0%} −{worse:.0%}",
                style=run.style,
                strong=run.is_best,
            )
        )
    if not lines:
        return None
    name = comparison.rows[0].name
    x = value_axis("users, in the order of their difference", 0, 1, percent=True)
    lows, highs = ([end(line.ys) for line in lines] for end in (min, max))
    y = value_axis(f"{heading(metric)} minus that of {name}", min(*lows, 0), max(*highs, 0))
    return draw(
        "users",
        "User by user",
        "A small mean difference may hide large ones. After each name: the share of users for whom "
        f"the run is better (+) and worse (−) than {name}; for the others both are equally good.",
        FULL,
        lambda width: draw_lines(lines, width, x, y, "Differences of the users"),
        Values(("run", "better for", "worse for", "equal for"), tuple(shares)),
    )


def draw_costs(comparison: Comparison) -> Picture | None:
    """Draw the headline metric against the seconds of fitting; None if one run or none has them."""
    metric = headline(comparison)
    timed = [
        (run, max(run.row.costs[FIT_SECONDS], 0.01))
        for run in by_merit(comparison)
        if FIT_SECONDS in run.row.costs
    ]
    if len(timed) < 2:
        return None
    points = [_cost(run, seconds) for run, seconds in timed]
    low, high = (end(point.x for point in points) for end in (min, max))
    x = log_axis("seconds to fit", low, high)
    y = value_axis(heading(metric), min(p.low for p in points), max(p.high for p in points))
    return draw(
        "costs",
        "Quality and cost",
        "Seconds as measured on the machine of each run, which may have run other jobs. "
        "Strokes are 95% intervals. A mark whose name had no room says it "
        "when it is chosen.",
        FULL,
        lambda width: draw_points(points, width, x, y, "Quality against seconds"),
        Values(
            ("run", "seconds to fit", heading(metric), "95% interval"),
            tuple(
                (
                    point.label,
                    f"{point.x:,.2f}",
                    decimals(point.y),
                    in_brackets(point.low, point.high),
                )
                for point in points
            ),
        ),
    )


def _cost(run: RankedRun, seconds: float) -> Point:
    mean, low, high = run.interval
    hover = f"{run.label}: {with_interval(run.interval)}, {seconds:,.2f} s"
    return Point(run.label, seconds, mean, low, high, hover, run.style, run.is_best)


def _padded(title: str, lows: Sequence[float], highs: Sequence[float]) -> Axis:
    """Return the axis of intervals, with a little room at both ends."""
    low, high = min(lows), max(highs)
    room = 0.03 * (high - low) or 0.01
    axis = value_axis(title, low, high)
    return Axis(title, min(low - room, axis.low), max(high + room, axis.high), axis.ticks)


def _epoch_ticks(last: int, step: int) -> list[int]:
    """Return epochs to label: the first one, then every ``step``-th."""
    return sorted({1, *range(step, last + 1, step)})
