"""Pictures of a comparison by kind of user and of item."""

from __future__ import annotations

from collections.abc import Sequence

from recsys.comparison.formats import heading, with_interval
from recsys.comparison.merit import HEADLINE, RankedRun, by_merit
from recsys.comparison.seeds import ModelRuns
from recsys.comparison.table import Comparison
from recsys.drawing.axes import Axis, value_axis
from recsys.drawing.lines import Line, draw_lines
from recsys.drawing.picture import HALF, Picture, draw
from recsys.drawing.values import line_values
from recsys.evaluation.segments import SEGMENTS

MOST_RUNS = 5
"""The number of runs in one picture: with more, intervals cannot be told apart."""

_TITLES = {
    "history": "By length of the history",
    "customer": "Cold and warm users",
    "purchase": "New items and repeats",
    "popularity_decile": "By popularity of the item",
    "gap": "By time since the last item",
}


def draw_segments(
    comparison: Comparison, columns: Sequence[str] = tuple(SEGMENTS)
) -> list[Picture]:
    """Draw NDCG@10 of the best runs and the reference by segment, one picture for each kind.

    Kinds that the rank tables lack, or of which all targets have the same value, have no picture.

    Args:
        comparison: the runs.
        columns: the kinds of segments, keys of `SEGMENTS`.
    """
    frame = comparison.models[0].first.ranks.frame
    drawn = []
    for column in columns:
        if column not in frame.columns or frame[column].drop_nulls().n_unique() < 2:
            continue
        if (picture := _draw(column, _shown(by_merit(comparison)))) is not None:
            drawn.append(picture)
    return drawn


def _shown(runs: list[RankedRun]) -> list[RankedRun]:
    """Return the best runs, with the reference in the last place if it is not among them."""
    best = runs[:MOST_RUNS]
    reference = [run for run in runs if run.is_reference and run not in best]
    return best[: MOST_RUNS - len(reference)] + reference


def _draw(column: str, runs: list[RankedRun]) -> Picture | None:
    frame = runs[0].model.first.ranks.frame
    segments = [
        segment
        for segment in frame[column].drop_nulls().unique().sort().to_list()
        if all(_has(run.model, column, segment) for run in runs)
    ]
    if len(segments) < 2:
        return None
    lines = [_line(run, column, segments) for run in runs]
    words = SEGMENTS[column]
    targets = frame[column].value_counts()
    counts = dict(zip(targets[column].to_list(), targets["count"].to_list(), strict=True))
    ticks = [(place, str(each).removesuffix(" quarter")) for place, each in enumerate(segments)]
    x = Axis(words, 0, len(segments) - 1, ticks, categories=True)
    y = value_axis(heading(HEADLINE), 0, max(max(line.highs) for line in lines))
    sizes = ", ".join(f"{counts[each]:,}" for each in segments)
    return draw(
        f"segment_{column}",
        _TITLES.get(column, words),
        f"Means and 95% intervals over the users with such held-out items. How many there are, "
        f"from left to right: {sizes}.",
        HALF,
        lambda width: draw_lines(lines, width, x, y, _TITLES.get(column, words), whiskers=True),
        line_values(lines, words, heading(HEADLINE)),
    )


def _line(run: RankedRun, column: str, segments: list[object]) -> Line:
    found = [
        run.model.where(column, segment).intervals([HEADLINE])[HEADLINE] for segment in segments
    ]
    return Line(
        label=run.label,
        xs=range(len(segments)),
        ys=[each.mean for each in found],
        lows=[each.low for each in found],
        highs=[each.high for each in found],
        places=[str(segment) for segment in segments],
        values=[with_interval(each) for each in found],
        style=run.style,
        strong=run.is_best,
    )


def _has(model: ModelRuns, column: str, segment: object) -> bool:
    """Does the run have targets in that segment?"""
    frame = model.first.ranks.frame
    return column in frame.columns and bool((frame[column] == segment).any())
